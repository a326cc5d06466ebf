"""CASCADE-style relaxation of draft trees by the target's hidden states: measured, as a rule, and in drafter training.

CASCADE (arXiv:2605.07230) relaxes tree verification by two properties of the target's hidden states, interchangeable
siblings and convergence along depth. Its formulas could not be read: everything here is a reconstruction, documented
where it is computed, and its numbers are not the paper's.
"""
