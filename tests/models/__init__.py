"""Models: providers over real HTTP on this machine, bridges, prices."""
