"""Tested tests: every promise is broken on purpose, and the test that keeps it must notice.

A *mutant* is one small change of the source, kept as data in `tests/mutants/*.toml`:

    [[mutant]]
    function = "privcal.trusted.source.Source.answer"   # a function, method, class or module-level name
    old = "exact text in it"                    # must be there exactly once
    new = "what stands there instead"
    promise = "One sentence: what is broken by it"
    test = "tests/trusted/test_source.py::test_that_must_fail"

`make prove` applies each to a copy of the source and sees its test fail. The text is looked for in
the function of that name, so a mutant survives a move within its file; where it is not found exactly
once, the run fails, and so does `tests/test_mutants.py`, which is an ordinary fast test. Mutants of
the C kernel are not possible; one of the NumPy kernel cites a test that runs it.

`make prove ONLY=TOPIC` runs some: the name of a file here, or part of a function's, test's or
promise's name.
"""
