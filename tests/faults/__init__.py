"""What a store does when the disk fails it: lost power, failed operations, no room.

`proof.power_images` and `proof.nth_sweep` run the searches and return what they found; the tests here run a tenth
of them each time and all of them with ANTIPHON_PROOF=1.
"""
