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
# # One round: law, bound and truth
#
# **Question.** A relaxed rule accepts more drafted tokens than lossless speculative decoding would. What does one round
# then really emit, what does the bound say about it, and how far is the bound from the truth?
#
# Everything here is exact: small chains, every sequence enumerated. The words are the field's: *target* p, *draft* q,
# *acceptance* f, *residual* G, *accepted length* N. A round drafts L tokens, accepts from left to right with probability f,
# replaces the first rejected token by a draw from the residual, or adds a bonus token from the target if all were accepted.

# %%
from functools import cache

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

import simulate
import theory
from paper_figures import style

plt.style.use(style.SHEET)
rng = np.random.default_rng(7)

# %% [markdown]
# ## A whole round
#
# A random target over three tokens, and a draft made from it at a mean TV of 0.3. With L = 3 drafted tokens the output is a
# law over all sequences of L + 1 tokens.

# %%
length = 3
target = simulate.dirichlet_tree(3, length + 1, rng)
draft = simulate.make_draft(target, 0.3, rng)

lossless = theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), length)
relaxed = theory.analyse_round(target, draft, theory.cool_sd(length, 1.5, floor=1.0), length)
for name, a in (("lossless", lossless), ("COOL-SD, delta = 1.5, floored", relaxed)):
    print(
        f"{name}: accepted {a.expected_accepted:.3f} of {length}, bound {a.tv_bound:.4f}, "
        f"TV {a.total_variation:.4f}, KL(out|target) {a.kl_output_target:.4f}, "
        f"KL(target|out) {a.kl_target_output:.4f}, largest ratio {a.max_ratio:.2f}"
    )

# %%
order = np.argsort(-relaxed.target_law.ravel())
figure, axes = plt.subplots(figsize=(8, 3))
axes.bar(range(len(order)), relaxed.target_law.ravel()[order], color="0.8", label="target")
axes.step(
    range(len(order)), relaxed.law.ravel()[order], where="mid", color=style.BLUE, linewidth=1, label="relaxed output"
)
axes.set(
    xlabel=f"the {len(order)} sequences of {length + 1} tokens, most likely under the target first",
    ylabel="probability",
    title="What one round emits",
)
axes.legend()
plt.show()

# %% [markdown]
# ## Bound against truth
#
# The bound adds up the bias of every position, weighted by the chance to get there: B = Σ_i Σ A_{i−1} TV(o_i, p_i). It is
# exact when one position is biased. With several, later corrections can cancel part of earlier ones, and the truth lies
# below.

# %%
strengths = np.linspace(0, 2.5, 26)
families = theory.schedule_families(length)
curves = {
    name: [theory.analyse_round(target, draft, families[name](s), length) for s in strengths]
    for name in ("uniform", "annealed, floored", "reversed")
}

figure, axes = plt.subplots(1, 3, figsize=(12, 3.4))
for name, curve in curves.items():
    n = [a.expected_accepted for a in curve]
    for panel, quantity in zip(axes, ("tv_bound", "total_variation", "kl_output_target")):
        panel.plot(n, [getattr(a, quantity) for a in curve], label=name, markevery=5, **style.MARKS[name])
for panel, title in zip(axes, ("bound B", "exact TV", "exact KL(output | target)")):
    panel.set(xlabel="accepted length N", title=title)
axes[0].legend()
plt.show()

shares = [a.total_variation / a.tv_bound for curve in curves.values() for a in curve if a.tv_bound > 0]
print(f"exact TV is {min(shares):.0%} to {max(shares):.0%} of the bound along these curves")

# %% [markdown]
# ## Is annealing better?
#
# *Annealing* relaxes early positions of a round more than late ones. Compare at *equal accepted length*: find the strength
# of each schedule that gives it, then look at every quantity. A ratio below 1 means that annealing beats uniform relaxation.


# %%
def accepted(verifier):
    return theory.analyse_round(target, draft, verifier, length).expected_accepted


quantities = ("tv_bound", "total_variation", "kl_output_target", "kl_target_output")
print(f"{'size':>5}{'bound':>9}{'TV':>9}{'KL out':>9}{'KL target':>11}   annealed / uniform, one round")
table = []
for size in (0.1, 0.25, 0.5, 0.75, 0.9):
    wanted = lossless.expected_accepted + size * (length - lossless.expected_accepted)
    pair = [
        theory.analyse_round(target, draft, families[f](theory.match(families[f], accepted, wanted, 0, 12)), length)
        for f in ("annealed, floored", "uniform")
    ]
    table.append([getattr(pair[0], q) / getattr(pair[1], q) for q in quantities])
    print(f"{size:5}" + "".join(f"{r:{w}.3f}" for r, w in zip(table[-1], (9, 9, 9, 11))))

print()
for name, column in zip(("the bound", "exact TV", "KL(out|target)", "KL(target|out)"), np.array(table).T):
    print(f"{name} prefers annealing at {np.sum(column < 1)} of {len(column)} sizes")

# %% [markdown]
# That the bound prefers annealing is a theorem where acceptance does not depend on the prefix; on chains like this one rare
# exceptions exist. The exact divergences of *one* round can disagree with it, size by size and each in its own way:
# spreading the relaxation lets later positions correct earlier ones. The next notebook shows why, and what changes over
# many rounds.
#
# ## Turn the knobs
#
# COOL-SD's schedule is ω_i = δ · exp(−ν i − μ), with μ such that the mean of ω is δ. The *floor* replaces ω_i by
# max(floor, ω_i). The function below draws everything one round does for given knobs; the cell after it puts sliders on it.


# %%
@cache
def chains(distance):
    rng = np.random.default_rng(3)
    deep = simulate.dirichlet_tree(3, 6, rng)
    return deep, simulate.make_draft(deep, distance, rng)


def show_round(delta=1.5, nu=0.7, floor=1.0, L=4, distance=0.3):
    target, draft = chains(distance)
    omega = theory.exponential_schedule(L, delta, nu, floor=floor)
    rounds = {
        "lossless": theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), L),
        "relaxed": theory.analyse_round(target, draft, theory.Verifier(theory.Relaxed(omega)), L),
    }
    _, axes = plt.subplots(1, 4, figsize=(13, 3.1), width_ratios=[1, 1, 1, 1.2])
    positions = np.arange(1, L + 1)
    axes[0].bar(positions, omega, color=style.BLUE)
    axes[0].axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes[0].set(title="relaxation ω", xlabel="position")
    for (name, a), look in zip(
        rounds.items(), ({"color": style.GREY, "marker": "o"}, {"color": style.BLUE, "marker": "s"})
    ):
        axes[1].plot(positions, a.survival, label=f"{name}, N = {a.expected_accepted:.2f}", **look)
    axes[1].set(title="survival: accepted that far", xlabel="position", ylim=(0, 1.02))
    axes[1].legend(loc="lower left")
    a = rounds["relaxed"]
    axes[2].bar(positions, a.tv_bound_per_position, color=style.ORANGE)
    axes[2].set(title="what each position adds to B", xlabel="position")
    values = {
        "B": a.tv_bound,
        "TV": a.total_variation,
        "KL(out‖target)": a.kl_output_target,
        "KL(target‖out)": a.kl_target_output,
    }
    bars = axes[3].barh(list(values), list(values.values()), color=[style.ORANGE, style.BLUE, style.GREEN, style.SKY])
    axes[3].bar_label(bars, fmt="%.3f", padding=3)
    axes[3].set(title="bound and truth", xlim=(0, max(0.1, 1.25 * max(v for v in values.values() if np.isfinite(v)))))
    axes[3].invert_yaxis()
    for panel in axes[:3]:
        panel.set_xticks(positions)
    plt.show()


show_round()

# %% [markdown]
# The sliders need a running kernel; in a printed or exported notebook the picture above stands for them.


# %%
def slider(kind, value, low, high, step, name):
    return kind(value=value, min=low, max=high, step=step, description=name, continuous_update=False)


knobs = ipywidgets.interactive(
    show_round,
    delta=slider(ipywidgets.FloatSlider, 1.5, 0, 6, 0.1, "δ"),
    nu=slider(ipywidgets.FloatSlider, 0.7, -1, 2, 0.1, "ν"),
    floor=slider(ipywidgets.FloatSlider, 1.0, 0, 1, 0.1, "floor"),
    L=slider(ipywidgets.IntSlider, 4, 1, 5, 1, "L"),
    distance=slider(ipywidgets.FloatSlider, 0.3, 0.05, 0.45, 0.05, "draft TV"),
)
display(knobs)

# %% [markdown]
# **Try.** The floor at 0 and at 1 with everything else fixed: in a decreasing schedule B and TV stay, N moves. ν below zero
# relaxes late positions more. In the cells above: another seed; `length = 4`; `theory.excess_schedule`; a rule of another paper, such as
# `theory.EntropyRelaxed(0.3, 0.8)`, at the same accepted length.
