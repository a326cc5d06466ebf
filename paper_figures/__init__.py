"""Every figure of the project, each one a tidy table and its picture.

`python -m paper_figures` makes all of them into `figures/`; `registry` says how to add one.
"""
