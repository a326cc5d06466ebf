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
# # The frontier: how good could any rule be?
#
# **Question.** Many papers propose acceptance rules. For a given pair of models, how many tokens could *any* rule accept at
# a given error, what does the best one look like, and how much do the known ones leave on the table?
#
# Both errors of the earlier notebooks have an exact answer: the bound B by dynamic programming, the exact TV by a linear
# programme whose solution is certified from both sides.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simulate
import theory
from paper_figures import style

plt.style.use(style.SHEET)
rng = np.random.default_rng(11)
length, size = 3, 4
target = simulate.dirichlet_tree(size, length + 1, rng)
draft = simulate.make_draft(target, 0.3, rng)


def analyse(verifier):
    return theory.analyse_round(target, draft, verifier, length)


lossless = analyse(theory.Verifier(theory.Lossless()))
print(f"lossless decoding accepts {lossless.expected_accepted:.3f} of {length} drafted tokens a round")

# %% [markdown]
# ## The frontier of the bound
#
# A rule decides for every prefix c and token x how much of the drafted mass to accept. In terms of the accepted mass
# this is a linear programme, and "N − λ B" is solved backwards, position by position: a token that is over-drafted is worth
# accepting outright exactly if what follows it pays for it, 1 + W(c x) > λ. So the best rule is *bang-bang*: each token has a
# price, is accepted outright if the price exceeds λ, and is treated losslessly otherwise.
#
# All λ at once give the frontier. Below: the frontier, three schedules, and random rules that never accept less than
# lossless decoding.

# %%
front = theory.bound_frontier(target, draft, length)
print(f"the frontier has {len(front.tv_bound)} vertices, from B = 0 to B = {front.tv_bound[-1]:.3f}")


class RandomRule:
    """Between lossless and accept-all, at random for each position and token."""

    source, reconstructed = "example", False
    lossless, at_least_lossless, support_safe = False, True, False

    def __init__(self, rng):
        self.share = rng.random((length, size)) ** rng.choice([0.2, 1, 5], size=(length, 1))

    def acceptance(self, p, q, position):
        plain = theory.Lossless().acceptance(p, q, position)
        share = self.share[np.asarray(position)]
        return plain + share * (1 - plain)


cloud = [analyse(theory.Verifier(RandomRule(rng))) for _ in range(300)]
names = ("uniform", "annealed, floored", "reversed")
families = theory.schedule_families(length)
strengths = np.concatenate([np.linspace(0, 2.5, 21), [4, 8]])
curves = {name: [analyse(families[name](s)) for s in strengths] for name in names}


def n_of(analyses):
    return [a.expected_accepted for a in analyses]


figure, axes = plt.subplots(figsize=(7, 4))
axes.plot([a.tv_bound for a in cloud], n_of(cloud), ".", color="0.75", markersize=3, label="random rules")
axes.plot(front.tv_bound, front.expected_accepted, color=style.RED, linewidth=2, label="frontier: no rule lies above")
for name, curve in curves.items():
    axes.plot([a.tv_bound for a in curve], n_of(curve), label=name, markevery=4, **style.MARKS[name])
axes.set(xlabel="bound B of a round", ylabel="accepted length N", title="How good could any rule be, by the bound?")
axes.legend()
plt.show()

for name, curve in {"random rules": cloud, **curves}.items():
    left = [front.at(float(a.tv_bound)) - a.expected_accepted for a in curve]
    print(f"{name:18} accepted length left at its own B: {max(min(left), 0):.3f} to {max(left):.3f}")

# %% [markdown]
# ## The best rule anneals by itself
#
# The price of a token is what its acceptance is worth: itself, and the chance of more after it. It lies between one and the
# number of positions left, so that at the last position it is exactly one, and prices must come down along the block.
# Nobody asked for a decreasing schedule; this is one.

# %%
best = theory.optimal_verifier(
    target, draft, length, expected_accepted=lossless.expected_accepted + 0.6, frontier=front
)
figure, axes = plt.subplots(figsize=(7, 3))
shares = []
for i, table in enumerate(front.prices):
    prices = np.sort(table.ravel())
    axes.plot(i + 1 + np.linspace(-0.3, 0.3, len(prices)), prices, ".", color=style.BLUE)
    shares.append(np.mean(prices > best.slope))
axes.axhline(best.slope, color=style.RED, label=f"λ = {best.slope:.2f}: accepted outright above")
axes.set(
    xlabel="position in the round",
    ylabel="price λ*",
    xticks=range(1, length + 1),
    title="Prices of all tokens, prefix by prefix",
)
axes.legend()
plt.show()
for i, share in enumerate(shares, 1):
    print(
        f"position {i}: {share:4.0%} of the tokens (all prefixes) are worth accepting outright at λ = {best.slope:.2f}"
    )

# %% [markdown]
# ## Best by the bound is not best
#
# Rules at one accepted length, the cheapest by the bound among them. A bang-bang rule accepts some tokens with f = 1
# however little the target thinks of them. The bound does not mind; other measures may. The last row is block
# verification with a cap, this project's own: it is no token-wise rule and may lie beyond the frontier.


# %%
def at_equal_length(family, wanted):
    return family(theory.match(family, lambda v: analyse(v).expected_accepted, wanted, 0, 30))


measures = {
    "B": "tv_bound",
    "TV": "total_variation",
    "KL(out|target)": "kl_output_target",
    "KL(target|out)": "kl_target_output",
    "max ratio": "max_ratio",
}


def table(wanted):
    rules = {
        "best by the bound": theory.optimal_verifier(target, draft, length, expected_accepted=wanted, frontier=front)
    }
    rules |= {name: at_equal_length(families[name], wanted) for name in names}
    rules["capped block"] = at_equal_length(lambda s: theory.capped_block(np.exp(s)), wanted)
    values = {name: [float(getattr(analyse(v), m)) for m in measures.values()] for name, v in rules.items()}
    print(f"N = {wanted:.3f}\n{'':20}" + "".join(f"{m:>16}" for m in measures))
    for name, row in values.items():
        print(f"{name:20}" + "".join(f"{value:16.4f}" for value in row))
    for i, measure in enumerate(measures):
        print(f"least {measure}: {min(values, key=lambda name: values[name][i])}")


table(lossless.expected_accepted + 0.6)

# %% [markdown]
# ## The frontier of exact TV
#
# With the residual free as well, "most N subject to TV ≤ ε" is a linear programme over accepted masses and residual flows.
# A solver's word is not taken for it: the rule it finds is rebuilt and measured exactly (a lower end), and its dual
# solution proves that no rule does better (an upper end).

# %%
budgets = np.linspace(0, 0.5, 9)
exact = theory.exact_frontier(target, draft, length, budgets)
blocks = theory.block_frontier(target, draft, length, np.linspace(0, front.tv_bound[-1], 9))
found = theory.analyse_round(target, draft, exact.verifier(4), length)

figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True)
axes[0].plot(front.tv_bound, front.expected_accepted, color=style.RED, linewidth=2, label="token-wise rules")
axes[0].plot(blocks.tv_bound, blocks.expected_accepted, "o--", color=style.ORANGE, label="block rules")
axes[0].set(xlabel="bound B", ylabel="accepted length N", title="Frontiers of the bound")
axes[1].plot(budgets, exact.expected_accepted, color=style.RED, linewidth=2, label="frontier of exact TV")
for name, curve in curves.items():
    axes[0].plot([a.tv_bound for a in curve], n_of(curve), markevery=4, **style.MARKS[name])
    axes[1].plot([a.total_variation for a in curve], n_of(curve), label=name, markevery=4, **style.MARKS[name])
vertices = np.linspace(0, front.tv_bound[-1], 12)[1:-1]
by_bound = [analyse(theory.optimal_verifier(target, draft, length, budget=b, frontier=front)) for b in vertices]
axes[1].plot([a.total_variation for a in by_bound], n_of(by_bound), "^", color=style.GREEN, label="best by the bound")
axes[1].set(xlabel="exact TV of a round", title="Frontier of exact TV", xlim=(-0.02, 0.55))
for panel in axes:
    panel.legend()
plt.show()

print(f"largest gap between rule found and proved upper end: {np.max(exact.upper - exact.lower):.0e} tokens")
print(f"the rule found for TV ≤ {budgets[4]}: measured TV {found.total_variation:.6f}, N {found.expected_accepted:.6f}")
print(
    f"lossless decoding: token-wise N = {lossless.expected_accepted:.3f}, best block rule N = {blocks.expected_accepted[0]:.3f}"
)

# %% [markdown]
# ## What is left on the table
#
# The fair score of a rule: accepted length it leaves at its own bound and at its own exact TV. (Block rules may score
# below zero, since both frontiers are over token-wise rules.)

# %%
points = np.random.default_rng(0).normal(size=(size, 2))  # stands for a codebook, for the rules that need one
candidates = {
    "COOL-SD, δ = 1.1": theory.cool_sd(length, 1.1),
    "the same, floored": theory.cool_sd(length, 1.1, floor=1.0),
    "uniform, ω = 2": theory.Verifier(theory.Relaxed(2.0)),
    "Cactus, d = .1": theory.published_verifier(theory.Cactus(0.1)),
    "ensemble ½": theory.published_verifier(theory.Ensemble(0.5)),
    "CSD": theory.published_verifier(theory.EntropyRelaxed(0.5, 0.65)),
    "LANTERN, δ = .2": theory.lantern_verifier(theory.nearest_neighbours(points, 3), 2, delta=0.2),
    "capped block, ω = 2": theory.capped_block(2.0),
}
scores = {
    name: theory.distance_to_frontier(target, draft, verifier, length, frontier=front)
    for name, verifier in candidates.items()
}
print(f"{'':20}{'N':>8}{'B':>8}{'TV':>8}{'left at B':>12}{'left at TV':>12}")
for name, s in sorted(scores.items(), key=lambda item: item[1].left_at_bound):
    print(
        f"{name:20}{s.expected_accepted:8.3f}{s.tv_bound:8.3f}{s.total_variation:8.3f}"
        f"{s.left_at_bound:12.3f}{s.left_at_total_variation:12.3f}"
    )
gain = scores["the same, floored"].expected_accepted - scores["COOL-SD, δ = 1.1"].expected_accepted
print(f"\nThe floor alone is worth {gain:.3f} tokens a round here, at the same law.")

# %% [markdown]
# **Try.** Another wanted length in `table`. A Markov pair (`simulate.random_markov(4, rng)`): far longer rounds, since prices
# then depend on the last token only. `theory.bound_frontier(..., slopes=[1.2, 1.5])` for single optimal rules where all are too
# many. Put your own rule among the candidates (notebook 7).
