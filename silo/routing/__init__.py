"""How a call finds its grain: calls, their order, and the decision "here, there, nowhere yet"."""
