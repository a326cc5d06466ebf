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
# # Testing your own sampler
#
# **Question.** You have written a speculative sampler, in whatever framework. Does it emit the law it is meant to emit, and
# how would you know?
#
# Looking at samples does not tell: most mistakes leave fluent text and fine images. Comparing averages hardly does: many
# leave the accepted length as it should be. `simulate.testing` compares the *joint* law of a round's tokens and its accepted
# count with the exact law of the rule you declare, on pairs of chains chosen to show the known mistakes.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simulate
import theory
from paper_figures import style
from simulate.testing import Emitted, assert_law, check_law, drawing, exact_law, reference_sampler, refute

plt.style.use(style.SHEET)

# %% [markdown]
# ## A sampler, by hand
#
# It gets a batch of drafted blocks with the laws of both models along them: `draft_ids` (B, L), `target_probs` (B, L + 1, V),
# `draft_probs` (B, L, V). It answers with the tokens each round emits and how many drafts were accepted. Randomness comes
# from outside. Here it is given as numbers, one for each test and one for the last token, which will pay off below; `drawing`
# makes of it a sampler that takes a random generator. With `fault`, one thing goes wrong.


# %%
def by_hand(rounds, uniforms, fault=None):
    x, p, q = rounds.draft_ids, rounds.target_probs, rounds.draft_probs
    rows, length = np.arange(rounds.count), rounds.length
    p_of_x = np.take_along_axis(p[:, :length], x[..., None], axis=-1)[..., 0]
    q_of_x = np.take_along_axis(q, x[..., None], axis=-1)[..., 0]
    u = uniforms.acceptance
    if fault == "one uniform for all positions":
        u = np.broadcast_to(u[:, :1], u.shape)
    if fault == "q missing from the ratio":
        q_of_x = np.ones_like(q_of_x)
    if fault == "undeclared relaxation, ω = 1.1":
        p_of_x = 1.1 * p_of_x
    success = u * q_of_x < p_of_x  # u < p/q, without a division by zero
    if fault == "≤ for <":
        success = u * q_of_x <= p_of_x
    accepted = np.logical_and.accumulate(success, axis=1).sum(axis=1)

    p_next = p[rows, accepted]  # the target's law where the round ends
    if fault == "bonus token one position early":
        p_next = p[rows, np.minimum(accepted, length - 1)]
    q_next = np.where((accepted < length)[:, None], q[rows, np.minimum(accepted, length - 1)], 0)
    residual = np.maximum(p_next - q_next, 0)
    if fault == "residual replaced by p":
        residual = p_next
    empty = residual.sum(axis=1, keepdims=True) == 0  # p = q: nothing is ever rejected
    law = np.where(empty, p_next, residual)
    last = simulate.categorical(law / law.sum(axis=1, keepdims=True), uniforms.final)

    tokens = np.concatenate([x, np.zeros_like(x[:, :1])], axis=1)
    tokens[rows, accepted] = last
    return Emitted(tokens, accepted)


my_sampler = drawing(by_hand)
report = assert_law(my_sampler, length=2, smallest_tv=0.05)  # declared: lossless, the default
print(report)

# %% [markdown]
# It passes, and the report says what that is worth. The check draws only as many rounds as it needs, and both error
# probabilities it states hold at whatever round it stops.
#
# ## Six mistakes
#
# Because the randomness is an argument, the sampler also has an *exact* law, an integral over its uniforms
# (`exact_law`). So we know how wrong each mistake is, on a pair of Markov chains, before asking the test whether it sees it.

# %%
target = theory.MarkovChain([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
draft = theory.MarkovChain([0.3, 0.3, 0.4], [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.3, 0.4, 0.3]])
declared = theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), 2)

faults = (
    None,
    "residual replaced by p",
    "q missing from the ratio",
    "one uniform for all positions",
    "bonus token one position early",
    "undeclared relaxation, ω = 1.1",
    "≤ for <",
)


def with_fault(fault):
    return lambda rounds, uniforms: by_hand(rounds, uniforms, fault)


reports = {}
print(f"{'fault':34}{'exact TV':>9}{'accepted':>10}   verdict (lossless accepts {declared.expected_accepted:.4f})")
for fault in faults:
    exact = exact_law(with_fault(fault), target, draft, 2)
    reports[fault] = check_law(drawing(with_fault(fault)), length=2, smallest_tv=0.05)
    failure = reports[fault].failure
    verdict = "passes" if failure is None else f"fails after {failure.verdict_rounds} rounds, on “{failure.name}”"
    print(f"{fault or 'none':34}{exact.total_variation(declared.law):9.4f}{exact.expected_accepted:10.4f}   {verdict}")

# %% [markdown]
# A failure explains itself: the declared law beside the observed one, the worst event, and the nearest fault of a
# collection of known ones.

# %%
print(reports["residual replaced by p"])

# %% [markdown]
# ## What no law test can see
#
# `u <= f` for `u < f` differs only if a uniform is exactly zero or hits f: with 53 bits that takes more rounds than anyone
# will run. But then a token that the target *never* emits can be accepted. Where uniforms are an argument,
# `refute` tries them at the edges:

# %%
for fault in (None, "≤ for <"):
    found = refute(with_fault(fault))
    print(f"{fault or 'no fault'}: {'nothing found' if found is None else found}")

# %% [markdown]
# ## How small a mistake?
#
# The smaller the mistake, the more rounds. Below: undeclared relaxation by less and less. The dots are the rounds after which
# it was found, the line is what the report of a *correct* sampler guarantees for *any* mistake of that size. Most
# mistakes are found far sooner than guaranteed.

# %%
p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
lossless = theory.Verifier(theory.Lossless())
sizes, needed = [], []
for omega in (1.03, 1.06, 1.12, 1.25, 1.5, 2.0):
    relaxed = theory.Verifier(theory.Relaxed(omega))
    found = check_law(reference_sampler(relaxed), p, q, lossless, 1, smallest_tv=0.01)
    sizes.append(theory.analyse_round(p, q, relaxed, 1).total_variation)
    needed.append(found.failure.verdict_rounds if found.failure else np.nan)
    print(
        f"ω = {omega:4}: TV {sizes[-1]:.3f}, " + (f"found after {needed[-1]} rounds" if found.failure else "not found")
    )
correct = [check_law(my_sampler, p, q, lossless, 1, smallest_tv=tv).results[0] for tv in (0.02, 0.04, 0.08, 0.16, 0.32)]

figure, axes = plt.subplots(figsize=(5.5, 3.4))
axes.loglog(sizes, needed, "o", color=style.BLUE, label="found: undeclared relaxation")
axes.loglog(
    [r.smallest_tv for r in correct], [r.rounds for r in correct], "s-", color="black", label="guaranteed: any fault"
)
axes.set(xlabel="TV of the mistake", ylabel="rounds", title="Rounds needed")
axes.legend()
plt.show()

# %% [markdown]
# ## Relaxed rules, and rules that accept differently
#
# Nothing here is about lossless rules. Declare what yours is meant to do, and the law is compared with that. And if a
# sampler keeps the law of the tokens but accepts by another mechanism, as block verification does, say so with
# `counts="any"`.

# %%
verifier = theory.cool_sd(2, 1.3)
print(
    "COOL-SD, declared as such:",
    check_law(reference_sampler(verifier), verifier=verifier, length=2, smallest_tv=0.1).passed,
)
print("COOL-SD, declared lossless:", check_law(reference_sampler(verifier), length=2, smallest_tv=0.1).passed)
block = reference_sampler(theory.block(2))
for counts in ("declared", "any"):
    passed = check_law(block, length=2, smallest_tv=0.1, counts=counts).passed
    print(f'block verification against the lossless law, counts="{counts}": {passed}')

# %% [markdown]
# **Try.** A mistake of your own in `by_hand`. Your real sampler: `simulate.testing.adapters` takes torch functions, those of
# transformers, and any program that speaks JSON lines; a system that drafts for itself goes into a
# `simulate.testing.RoundDecoder`. `python -m simulate mutants` runs the kit against all known faults. In a test file of your
# own, `assert_law(my_sampler, verifier=...)` is all it takes.
