"""Parts of the gallery page: short answers from the tables, the claims ledger, style sheet and script."""
