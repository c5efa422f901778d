"""How frames get from one peer to another: transports, greetings, and link sessions that outlive their connections."""
