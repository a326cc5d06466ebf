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
# # One position: bias against rejection, by hand
#
# **Question.** A small *draft* model proposes a token and a large *target* model accepts or rejects it. What does it cost
# to accept more often than one should, and can a clever rule escape that cost?
#
# One position is enough to answer. p is the target's law of the next token, q the draft's. The draft proposes x ~ q; it
# is accepted with probability f(x). If it is rejected, the token is drawn from another law instead, the *residual* G.
# What comes out has the law
#
# o = q f + R G, with the rejection probability R = 1 − Σ q f.

# %%
import matplotlib.pyplot as plt
import numpy as np

import theory
from paper_figures import style

plt.style.use(style.SHEET)
p = np.array([0.5, 0.3, 0.2])
q = np.array([0.2, 0.3, 0.5])

# %% [markdown]
# ## Lossless and relaxed, in four lines
#
# Lossless speculative decoding takes f = min(1, p/q) and G ∝ [p − q f]₊ ([x]₊ is the larger of x and 0). COOL-SD
# (arXiv 2601.09212) *relaxes* it by a factor ω: f = min(1, ω p/q). ω = 1 is lossless.


# %%
def position(p, q, omega):
    accepted = q * np.minimum(1, omega * p / q)  # q f, the mass that is accepted at each token
    rejection = 1 - accepted.sum()  # R
    missing = np.maximum(p - accepted, 0)
    residual = missing / missing.sum() if missing.sum() > 0 else p
    return accepted, rejection, accepted + rejection * residual


print(f"target p {p}, draft q {q}, TV(p, q) = {theory.total_variation(p, q):.2f}\n")
for omega in (1.0, 1.5, 2.0, 2.5):
    accepted, rejection, output = position(p, q, omega)
    bias = np.abs(output - p).sum() / 2
    print(
        f"ω = {omega}: accepted mass {accepted.round(3)}, output {output.round(3)}, "
        f"rejected {rejection:.2f} + bias {bias:.2f} = {rejection + bias:.2f}"
    )

# %% [markdown]
# The *bias* is the total variation between output and target: TV(o, p) = ½ Σ |o − p|, the largest error that o makes in the
# probability of any event. `theory` does the same with one object that later notebooks reuse, a *verifier*: a rule f with
# its residual G.

# %%
for omega in (1.0, 1.5, 2.0, 2.5):
    step = theory.Verifier(theory.Relaxed(omega)).step(p, q, 0)
    accepted, rejection, output = position(p, q, omega)
    assert np.allclose(step.output, output, atol=1e-12)
    assert np.isclose(step.rejection, rejection, atol=1e-12)
print("by hand and by theory.Verifier: the same to 1e-12")

# %% [markdown]
# ## The one-position line
#
# Every row above has the same sum. That is no accident of these numbers:

# %%
line = theory.prove_one_position_line()
print(line.statement)
print(f"holds: {line.holds} ({line.checked})")

# %% [markdown]
# The last term of the statement is the *waste*: target mass that the draft offers and the rule refuses. A rule that never
# accepts less than lossless decoding wastes nothing, so for all such rules
#
# **bias + rejection = TV(p, q).**
#
# Whatever is accepted beyond lossless is paid for in bias, one for one. Below: a range of ω, then random rules in the
# plane of rejection and bias, with published ones among them.

# %%
rng = np.random.default_rng(1)
distance = theory.total_variation(p, q)


def bias_and_rejection(f):
    rejection = 1 - (q * f).sum()
    return rejection, np.maximum(q * f - p, 0).sum()  # the least bias any residual can leave


omegas = np.linspace(0.4, 2.6, 200)
steps = [position(p, q, omega) for omega in omegas]
rejected = np.array([step[1] for step in steps])
bias = np.array([np.abs(step[2] - p).sum() / 2 for step in steps])

published = {
    "lossless": theory.Lossless(),
    "COOL-SD, ω = 1.7": theory.Relaxed(1.7),
    "ensemble ½": theory.Ensemble(0.5),
    "Cactus, d = .1": theory.Cactus(0.1),
    "CSD, λ = .5": theory.EntropyRelaxed(0.5, 2.0),
    "top-2": theory.TopK(2),
    "accept all": theory.AcceptAll(),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
left.stackplot(
    omegas, bias, rejected, labels=["bias TV(o, p)", "rejection R"], colors=[style.BLUE, style.SKY], edgecolor="white"
)
left.axhline(distance, color="black", linestyle="--", label="TV(p, q)")
left.axvline(1, color="black", linewidth=0.8, linestyle=":")
left.set(xlabel="relaxation ω (1 is lossless, below it mass is wasted)", ylabel="probability", title="One for one")
left.legend(loc="upper right")

cloud = np.array([bias_and_rejection(rng.random(3) ** rng.choice([0.2, 1.0])) for _ in range(2000)])
right.plot(*cloud.T, ".", color="0.8", markersize=2, label="random rules")
right.plot([0, distance], [distance, 0], color="black", label="the line: nothing wasted")
for (name, rule), marker in zip(published.items(), "osD^v<*"):
    right.plot(*bias_and_rejection(rule.acceptance(p, q, 0)), marker, markersize=7, label=name)
right.set(xlabel="rejection R", ylabel="least bias", title="No rule lies below the line")
right.legend(fontsize=7.5, frameon=True)
plt.show()

waste = cloud.sum(axis=1) - distance
print(f"least bias + rejection − TV(p, q) over {len(cloud)} random rules: {waste.min():.4f}")
for name, rule in published.items():
    f = rule.acceptance(p, q, 0)
    wasted = sum(bias_and_rejection(f)) - distance
    print(f"{name:18} claims f ≥ lossless: {rule.at_least_lossless!s:5}   wasted here: {max(wasted, 0):.3f}")

# %% [markdown]
# So total variation at one position cannot rank rules that waste nothing. Three other things can: other measures of the
# bias, the choice of the residual, and, in the next notebook, more than one position.
#
# ## What the line does not see
#
# Below, rules of several papers are all set to the *same* rejection, hence the same TV. KL(o‖p) and the largest ratio o/p
# differ, because the rules put the same bias in different places. Four tokens here, so that there is room to choose.

# %%
p4, q4 = np.array([0.45, 0.3, 0.15, 0.1]), np.array([0.15, 0.2, 0.3, 0.35])
families = {  # a rule with one strength, and the range in which it grows bolder
    "COOL-SD": (theory.Relaxed, 1.0, 10.0),
    "ensemble": (theory.Ensemble, 0.0, 1.0),
    "Cactus": (theory.Cactus, 0.0, 10.0),
    "CSD": (lambda s: theory.EntropyRelaxed(s, 2.0), 0.0, 10.0),
}


def acceptance_rate(verifier):
    return 1 - float(verifier.step(p4, q4, 0).rejection)


overlap = 1 - theory.total_variation(p4, q4)
wanted = overlap + (1 - overlap) / 2
print(f"acceptance {wanted:.3f}, half way from lossless to everything\n")
print(f"{'rule':10}{'residual':>10}{'TV':>8}{'KL(o|p)':>10}{'KL(p|o)':>10}{'max o/p':>10}")
for name, (rule, low, high) in families.items():
    strength = theory.match(rule, lambda rule: acceptance_rate(theory.Verifier(rule)), wanted, low, high)
    for residual in (theory.optimal_residual, theory.kl_residual):
        o = theory.Verifier(rule(strength), residual).step(p4, q4, 0).output
        print(
            f"{name:10}{residual.__name__.split('_')[0]:>10}{theory.total_variation(o, p4):8.3f}"
            f"{theory.kl_divergence(o, p4):10.4f}{theory.kl_divergence(p4, o):10.4f}{theory.max_ratio(o, p4):10.3f}"
        )

# %% [markdown]
# One column is constant: TV is settled by the acceptance alone. COOL-SD's rule has the smallest largest ratio, which is
# a theorem: no rule accepts more with o ≤ ω p. The residual matters too. G* ∝ [p − q f]₊ is one of many
# residuals that leave the least TV; the KL residual ∝ [c p − q f]₊ is the one among them that leaves the least KL.
#
# ## When the residual is wrong
#
# The residual of lossless decoding, [p − q]₊, is the right one exactly as long as the rule never accepts less than
# lossless. Below ω = 1, as in the tail of a decaying schedule, it adds bias of its own (COOL-SD's Prop. 1 has the condition):

# %%
for proof in (theory.prove_prop_1(), theory.prove_prop_1(below=True)):
    print(f"{proof.statement}\n    holds: {proof.holds} ({proof.checked})")
    if proof.counterexample:
        print(f"    {proof.counterexample}")

omegas = np.linspace(0.2, 2.5, 100)
for residual, dash in ((theory.vanilla_residual, "--"), (theory.optimal_residual, "-")):
    outputs = [theory.Verifier(theory.Relaxed(omega), residual).step(p, q, 0).output for omega in omegas]
    plt.plot(omegas, [theory.total_variation(o, p) for o in outputs], dash, label=residual.__name__.replace("_", " "))
plt.axvline(1, color="black", linewidth=0.8, linestyle=":")
plt.gcf().set_size_inches(5.5, 3)
plt.gca().set(xlabel="relaxation ω", ylabel="bias TV(o, p)", title="Below ω = 1 the residual matters")
plt.legend()
plt.show()

# %% [markdown]
# **Try.** Other laws p and q, one of them with a zero. A rule of your own as a function f(p, q): does it waste anything?
# `theory.published_rules()` lists all published rules with what they claim; add one to the table, and compare
# `theory.transport_cost` or `theory.hellinger` of its output.
