"""The node process: what all training processes of one machine, user and job share."""
