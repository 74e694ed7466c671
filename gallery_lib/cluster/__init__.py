"""Several hosts: for now those of a lab on one machine (lab/)."""
