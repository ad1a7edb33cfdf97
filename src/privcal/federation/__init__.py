"""The same calibration over NVIDIA FLARE: every source a site of its own, on its own machine.

The loop of `privcal.calibrate` runs at the calibrator. A FLARE job carries its questions to the
sites: on the server a relay that computes nothing, at each site an executor that belongs to the
site's own installation and takes nothing from the job but a signed question.
"""
