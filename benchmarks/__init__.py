"""How fast it is, and what survives; each file is a command. A package, so that no installed one is found instead."""
