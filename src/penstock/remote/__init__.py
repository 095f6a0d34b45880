"""Workers on other machines: their processes, the ferry that brings in what they prepare, and the gateway to the cluster."""
