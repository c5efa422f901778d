"""Who may serve: one silo and all that can befall it, explored whole."""
