"""Many runs at once: the methods of a real calibration, answered by arithmetic, and measured.

`splits.Splits` take private rows out of a shift and test on the rest, `population.Resampled` draws
them with replacement and tests on all. `answers.run` gives the map of every trial,
`measure.measure` what it is worth. No files of results, no processes, no paper: those are in
`privcal.study` and `privcal.advise`.
"""
