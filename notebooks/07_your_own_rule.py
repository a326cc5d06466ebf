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
# # Your own rule in twenty lines, judged
#
# **Question.** You have an idea for an acceptance rule. Is it any good? Write it down once; the same object is then judged
# exactly, simulated, and run on a real model.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simulate
import theory
from paper_figures import style

plt.style.use(style.SHEET)

# %% [markdown]
# ## The rule
#
# The idea here: lossless decoding accepts with min(1, p/q). Soften the ratio with a power γ below one, so that a token that
# is a little over-drafted is hardly ever refused, and one that the target would never emit still always is. Three claims
# belong to a rule; they are what the analyses rely on.


# %%
class Softened:
    """Accept with min(1, p/q)**γ; γ = 1 is lossless, γ → 0 accepts whatever the target can emit."""

    source, reconstructed = "example", False
    lossless, at_least_lossless, support_safe = False, True, True

    def __init__(self, gamma):
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
        self.gamma = gamma

    def acceptance(self, p, q, position):
        return theory.Lossless().acceptance(p, q, position) ** self.gamma


# %% [markdown]
# Claims are taken at their word, so try them first, on many random laws, some with zeros:

# %%
rng = np.random.default_rng(0)
p, q = (rng.dirichlet(np.full(6, 0.4), 5000) * (rng.random((5000, 6)) > 0.2) + 1e-12 * np.eye(6)[0] for _ in range(2))
p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
rule = Softened(0.5)
f, plain = rule.acceptance(p, q, 0), theory.Lossless().acceptance(p, q, 0)
truth = {
    "lossless": bool(np.all(q * f <= p + 1e-15)),
    "at_least_lossless": bool(np.all(f >= plain)),
    "support_safe": not np.any(q * f * (p == 0) > 0),
}
for claim, holds in truth.items():
    print(f"{claim:18} claimed {getattr(rule, claim)!s:6} on {len(p)} random pairs of laws {holds}")
assert all(holds or not getattr(rule, claim) for claim, holds in truth.items())

# %% [markdown]
# ## One round and a whole sequence, exactly
#
# A random target of four tokens, a draft at a mean TV of 0.3, rounds of L = 3. Bound and distances of one round, then of a
# sequence of six tokens decoded over as many rounds as it takes.

# %%
rng = np.random.default_rng(4)
length, tokens, size = 3, 6, 4
target = simulate.dirichlet_tree(size, tokens, rng)
draft = simulate.make_draft(target, 0.3, rng)
verifier = theory.Verifier(rule)  # with the residual of least TV; theory.kl_residual is another

one = theory.analyse_round(target, draft, verifier, length)
many = theory.analyse_sequence(target, draft, verifier, length, tokens)
print(
    f"one round: accepted {one.expected_accepted:.3f} of {length}, bound {one.tv_bound:.3f}, TV {one.total_variation:.3f}, "
    f"KL(out|target) {one.kl_output_target:.3f}, KL(target|out) {one.kl_target_output:.3f}"
)
print(
    f"{tokens} tokens:  {many.tokens_per_call:.3f} tokens a call, bound {many.tv_bound:.3f}, TV {many.total_variation:.3f}, "
    f"KL(out|target) {many.kl_output_target:.3f}, predictive TV a token {many.predictive().total_variation.mean():.4f}"
)

# %% [markdown]
# The simulator runs the same object. An interval's confidence should be the share of runs in which it holds the exact number:

# %%
runs = [
    simulate.estimate(target, draft, verifier, length, tokens, 200, np.random.default_rng(seed)) for seed in range(50)
]
for name in ("tokens_per_call", "total_variation", "kl_output_target"):
    exact, intervals = getattr(many, name), [getattr(run, name) for run in runs]
    held = sum(exact in interval for interval in intervals)
    print(
        f"{name:18} exact {exact:.4f}, first run {intervals[0]}, held by {held} of {len(runs)} ({intervals[0].confidence:.0%} claimed)"
    )

# %% [markdown]
# ## Against everything published, at equal cost
#
# A rule's error says nothing without its speed. `compare_every_rule` sets every published rule to the same accepted length, half
# way from lossless to accepting everything, each with the residual it was published with, and block verification
# beside them. Ours joins at its own matching γ.

# %%
points = np.random.default_rng(0).normal(size=(size, 2))  # stands for a codebook, for the rules that need one
share = 0.5
rows = [r for r in theory.compare_every_rule(target, draft, length, points, [share]) if r["matched"]]


def accepted(verifier):
    return theory.analyse_round(target, draft, verifier, length).expected_accepted


least, most = accepted(theory.Verifier(theory.Lossless())), length


def ours(strength):
    return theory.Verifier(Softened(np.exp(-strength)))


strength = theory.match(ours, accepted, least + share * (most - least), 0, 20)
mine = theory.analyse_round(target, draft, ours(strength), length)
measures = ("tv_bound", "total_variation", "kl_output_target", "kl_target_output")
rows.append({"rule": "SOFTENED (ours)", "residual": "optimal"} | {m: float(getattr(mine, m)) for m in measures})

rows.sort(key=lambda row: row["kl_output_target"])
print(f"all at {mine.expected_accepted:.3f} accepted tokens a round; ours has γ = {np.exp(-strength):.3f}\n")
print(f"{'rule':36}{'residual':>18}{'bound':>8}{'TV':>8}{'KL out':>8}{'KL target':>11}")
for row in rows:
    print(
        f"{row['rule']:36}{row['residual']:>18}" + "".join(f"{row[m]:{w}.4f}" for m, w in zip(measures, (8, 8, 8, 11)))
    )

print()
for measure in measures:
    better = sum(row[measure] < float(getattr(mine, measure)) - 1e-9 for row in rows)
    print(f"{measure:18} ours is number {better + 1} of {len(rows)}")

# %%
figure, axes = plt.subplots(figsize=(7, 0.24 * len(rows) + 0.8))
heights = np.arange(len(rows))[::-1]
for measure, marker, colour in zip(("total_variation", "kl_output_target"), "os", (style.BLUE, style.ORANGE)):
    axes.plot([row[measure] for row in rows], heights, marker, color=colour, label=measure.replace("_", " "))
axes.set_yticks(heights, [f"{row['rule']}, {row['residual']}" for row in rows], fontsize=7)
for label, row in zip(axes.get_yticklabels(), rows):
    label.set_fontweight("bold" if "ours" in row["rule"] else "normal")
axes.set(title=f"All at {mine.expected_accepted:.2f} accepted tokens a round", xlim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# ## What is left on the table
#
# The best any token-wise rule could do at the same bound, and any rule at the same TV:

# %%
front = theory.bound_frontier(target, draft, length)
for name, candidate in {"ours": ours(strength), "uniform, ω = 2": theory.Verifier(theory.Relaxed(2.0))}.items():
    d = theory.distance_to_frontier(target, draft, candidate, length, frontier=front)
    print(
        f"{name:16} N {d.expected_accepted:.3f}; at its bound {d.best_at_bound:.3f} would be possible, "
        f"at its TV {d.best_at_total_variation:.3f}"
    )

strengths = np.linspace(0, 3, 25)
uniform = theory.schedule_families(length)["uniform"]
curves = {
    "ours": [theory.analyse_round(target, draft, ours(s), length) for s in strengths],
    "uniform": [theory.analyse_round(target, draft, uniform(s), length) for s in strengths],
}
budgets = np.linspace(0, 0.45, 8)
exact = theory.exact_frontier(target, draft, length, budgets)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
axes[0].plot(front.tv_bound, front.expected_accepted, color=style.RED, linewidth=2)
axes[1].plot(exact.total_variation, exact.expected_accepted, color=style.RED, linewidth=2, label="frontier")
for (name, curve), marker, colour in zip(curves.items(), "so", (style.BLUE, style.BLACK)):
    for panel, measure in zip(axes, ("tv_bound", "total_variation")):
        n = [a.expected_accepted for a in curve]
        panel.plot([getattr(a, measure) for a in curve], n, marker=marker, markevery=4, color=colour, label=name)
axes[0].set(xlabel="bound B", ylabel="accepted length N", title="By the bound")
axes[1].set(xlabel="exact TV", title="By exact TV")
axes[1].legend()
plt.show()

# %% [markdown]
# One chain is an anecdote. The same question over several, by the measure you care about:

# %%
wins = {measure: [] for measure in measures}
for seed in range(8):
    rng = np.random.default_rng(seed)
    target = simulate.dirichlet_tree(size, length + 1, rng)
    draft = simulate.make_draft(target, 0.3, rng)
    least = accepted(theory.Verifier(theory.Lossless()))
    wanted = least + share * (length - least)
    pair = [
        theory.analyse_round(target, draft, family(theory.match(family, accepted, wanted, 0, 20)), length)
        for family in (ours, uniform)
    ]
    for measure, ratios in wins.items():
        ratios.append(getattr(pair[0], measure) / getattr(pair[1], measure))
print(f"ours / uniform relaxation at equal accepted length, {len(ratios)} chains")
for measure, ratios in wins.items():
    mean = np.exp(np.mean(np.log(ratios)))
    print(
        f"{measure:18} {mean:.3f} on average ({min(ratios):.3f} to {max(ratios):.3f}), better on {np.sum(np.array(ratios) < 1)}"
    )

# %% [markdown]
# **Try.** Your rule in place of `Softened`. Give it an annealed γ: `position` may be an array, see `theory.Relaxed`. The residual
# `theory.kl_residual` in `theory.Verifier(rule, theory.kl_residual)`. Budgets (`theory.budgeted`), and `theory.lifted_block(verifier)`,
# which accepts more at the same law of every step. Real images: `validate.measure(validate.load("fashion"), verifier, 5)`, as in
# notebook 5. A sampler for it: test that, as in notebook 6.
