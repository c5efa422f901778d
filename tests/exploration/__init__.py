"""Small protocols explored whole: every state that they can reach, by the cores that the product runs."""
