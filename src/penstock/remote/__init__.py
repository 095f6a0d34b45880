"""Workers on other machines: what is taken from the network, and how."""
