"""Small protocols, explored whole: every state that they can reach, and what must hold in each."""
