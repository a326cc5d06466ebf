# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Whole images: likelihoods, detectors, budgets
#
# **Question.** What does relaxed decoding do to whole images of a real model: can one see it, can *anyone* tell, and can the
# damage be limited in advance?
#
# The repository holds a small class-conditional image model, its drafts and its tokenizer, trained on Fashion-MNIST. An
# image is a grid of tokens, drawn one after the other. Decoding an image relaxed has a law of its own, and the theory gives
# the *exact* probability of any finished image under it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import theory
import validate
from paper_figures import style
from simulate.intervals import mean_interval

plt.style.use(style.SHEET)
images, length, seed = 24, 5, 0
pair = validate.load("fashion", device="cpu")
print(f"{pair.name}: images of {pair.num_tokens} tokens out of {pair.vocab_size}, {pair.num_classes} classes")
lossless = theory.Verifier(theory.Lossless())
relaxed = {
    "δ = 1.1, floored": theory.cool_sd(length, 1.1, floor=1.0),
    "δ = 4, floored": theory.cool_sd(length, 4.0, floor=1.0),
    "accept all": theory.Verifier(theory.AcceptAll()),
}
looks = dict(zip(relaxed, ((style.BLUE, "-"), (style.RED, "--"), (style.PURPLE, ":"))))

# %% [markdown]
# ## Decode
#
# `decode` makes images with a verifier. `measure` does, too, and holds what happens against the theory's prediction; the
# target's own images (`sample_baseline`) are shared. All runs have the same seed, so image k differs between them only where
# a decision did.

# %%
baseline = validate.sample_baseline(pair, 2 * images, device="cpu", seed=seed)
measured = {
    name: validate.measure(pair, verifier, length, images, baseline=baseline, device="cpu", seed=seed)
    for name, verifier in relaxed.items()
}
exact_run = validate.decode(pair, lossless, length, images, device="cpu", seed=seed + 1)
runs = {"lossless": exact_run} | {name: m.decoded for name, m in measured.items()}

shown = 20
figure, axes = plt.subplots(len(runs), 1, figsize=(10, 0.62 * len(runs)))
for panel, (name, run) in zip(axes, runs.items()):
    with torch.no_grad():
        pixels = pair.tokenizer.decode(torch.from_numpy(run.tokens[:shown])).numpy()
    panel.imshow(1 - np.concatenate(list(pixels), axis=1), cmap="gray", vmin=0, vmax=1)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    panel.set_ylabel(f"{name}\n{run.tokens_per_call:.2f} tokens a call", rotation=0, ha="right", va="center")
    panel.grid(False)
plt.show()

for name, m in measured.items():
    nll, accuracy = m.quality.nll_per_token, m.quality.judge_accuracy
    print(
        f"{name:18}{m.estimate.tokens_per_call} tokens a call (predicted {m.prediction.tokens_per_call.value:.3f}), "
        f"{nll.value:.2f} nats a token under the target, {accuracy.value:.0%} recognised"
    )
quality = baseline.quality
print(
    f"{'the target':18}itself: {quality.nll_per_token.value:.2f} nats a token, {quality.judge_accuracy.value:.0%} "
    f"recognised; in brackets 95 % intervals of {images} images"
)

# %% [markdown]
# "Predicted" comes from the target's own images, without any decoding; the gap to the measured value is how far relaxed
# decoding has drifted from them.
#
# ## The likelihood of a finished image
#
# Which tokens were accepted cannot be seen in an image. But the offset within the running round is a hidden state with L + 1
# values, so that a forward recursion sums over all ways an image could have come about. ρ = P̂(image)/P(image) is then
# exact, image by image. Lossless decoding has ρ = 1 for *every* image.

# %%
both = baseline.predicting_scores, baseline.comparing_scores
tokens, target_probs, draft_probs = (
    torch.cat([getattr(scores, part) for scores in both]) for part in ("tokens", "target_probs", "draft_probs")
)
own = torch.take_along_dim(target_probs, tokens[..., None], -1)[..., 0].log().sum(-1)
ours = theory.sequence_log_likelihood(tokens, target_probs, draft_probs, lossless, length)
print(f"lossless: |log ρ| is at most {(ours - own).abs().max():.0e} over {len(tokens)} images")

figure, axes = plt.subplots(1, len(measured), figsize=(11, 2.8))
for panel, (name, m) in zip(axes, measured.items()):
    ours, theirs = m.estimate.log_ratio_output, m.estimate.log_ratio_target
    bins = np.linspace(min(ours.min(), theirs.min()), max(ours.max(), theirs.max()), 25)
    panel.hist(theirs, bins, density=True, color="0.75", label="the target's images")
    panel.hist(ours, bins, density=True, histtype="step", color=looks[name][0], linewidth=1.6, label="relaxed images")
    panel.axvline(0, color="black", linewidth=0.8, linestyle=":")
    panel.set(title=name, xlabel="log ρ = log P̂/P (nats)", yticks=[])
axes[0].legend(loc="upper left")
plt.show()

# %% [markdown]
# ## Can anyone tell?
#
# The best possible detector knows both models and flags an image if ρ is large (Neyman and Pearson). Its curve of
# detections against false alarms bounds that of every person, network or statistic. The largest distance of the curve
# from the diagonal is the TV between the two laws; lossless decoding is the diagonal.

# %%
figure, axes = plt.subplots(figsize=(4.6, 4.2))
axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, label="lossless")
for name, m in measured.items():
    roc = m.estimate.roc
    axes.plot(roc.false_alarm, roc.detection, looks[name][1], color=looks[name][0], label=name)
axes.set(xlabel="false alarms (target's images flagged)", ylabel="detections", title="The best detector there is")
axes.legend(loc="lower right")
plt.show()

for name, m in measured.items():
    e = m.estimate
    print(
        f"{name:18}TV of whole images {e.total_variation}, KL(out‖target) {e.kl_output_target} nats, "
        f"bound {e.tv_bound.value:.2f}"
    )

# %% [markdown]
# A whole image is many tokens, and small biases add up: TV of images can be large where no single token gives much away. The
# bound over a whole image can exceed one and then says nothing; the likelihood ratio still does.
#
# ## A budget
#
# A *budgeted* decoder owns a ledger of ε nats for the whole image. It relaxes a step only as far as the step's KL still fits
# into what is left, and is lossless otherwise. Then KL(P̂‖P) ≤ ε holds for every model and every image, in advance, and
# TV ≤ √(ε/2) with it (Pinsker).
#
# What does that leave of the speed? The target's images answer, weighted by ρ: E_P[ρ · calls] is the expected number of
# calls of the budgeted decoder. (Weights become uneven as ε grows; the effective number of images says how much.)


# %%
def with_budget(verifier, epsilon):
    """log ρ and expected calls of every image under the budgeted decoder."""
    rule = theory.budgeted(verifier, epsilon, ledger="kl")
    found = theory.filter_budget(tokens, target_probs, draft_probs, rule, length)
    return (found.log_likelihood - found.target_log_likelihood).numpy(), found.starts.sum(-1).numpy()


_, plain = with_budget(lossless, 0.0)
bold = "δ = 1.1, floored"
rules = {bold: relaxed[bold], "uniform, ω = 1.15": theory.Verifier(theory.Relaxed(1.15))}
budgets = (0.05, 0.1, 0.2, 0.4)
saved = {name: [] for name in rules}
print(f"lossless: {plain.mean():.2f} target calls an image")
print(f"{'':19}{'ε':>5}{'TV at most':>12}{'calls saved':>32}{'effective images':>22}")
for name, rule in rules.items():
    for epsilon in budgets:
        log_ratio, calls = with_budget(rule, epsilon)
        rho = np.exp(log_ratio)
        # E ρ = 1 exactly: taking (ρ − 1) times a constant away changes no mean and removes most of the noise.
        terms = plain - rho * calls + (rho - 1) * calls.mean()
        saved[name].append(mean_interval([terms], 0.95, "normal", least=-np.inf))
        effective = f"{rho.sum() ** 2 / (rho**2).sum():.0f} of {len(rho)}"
        print(f"{name:19}{epsilon:5}{np.sqrt(epsilon / 2):12.3f}{saved[name][-1]!s:>32}{effective:>22}")

figure, axes = plt.subplots(figsize=(6, 3.4))
for (name, rows), marker, dash in zip(saved.items(), "os", ("-", "--")):
    low, value, high = np.array([list(interval) for interval in rows]).T / plain.mean()
    axes.errorbar(budgets, value, [value - low, high - value], marker=marker, linestyle=dash, capsize=3, label=name)
axes.axhline(0, color="black", linewidth=0.8, linestyle=":")
axes.set(
    xlabel="budget ε (nats for a whole image)",
    ylabel="share of target calls saved",
    title="What a certificate leaves of the speed (95 % intervals)",
)
axes.legend(loc="upper left")
plt.show()
free = 1 - exact_run.tokens_per_call / measured[bold].decoded.tokens_per_call
print(
    f"{bold}: without a budget it saves {free:.0%} of the calls, at KL {measured[bold].estimate.kl_output_target} nats"
)

# %% [markdown]
# **Try.** More images (`images = 500`: narrower intervals). Another draft: `validate.load("fashion", draft="24x1")`; the names
# are in `pair.drafts`. Another guidance: `pair.with_guidance(1.0)`. Another rule under the budget, or
# `ledger="tv"`. `theory.capped_block(2.0)` as a verifier. `python -m validate` prints predicted beside measured as a table.
