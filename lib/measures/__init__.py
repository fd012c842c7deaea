"""Records + gold data -> scores, one row per query."""
