"""What the paper proves, or says in passing, that no study is needed to check."""

THEORY = (
    "Proposition 1, that the log likelihood is unimodal in T, holds: the mean NLL is convex in 1/T. It "
    "does not cover the private method: for a finite sensitivity each row's NLL is clipped, and a sum of "
    "clipped ones can have two minima. At the clip of 10 that is rare (fewer than 1 in 20 of the random "
    "samples that our tests draw), at lower clips less so.",
    "Proposition 2, that |accuracy − mean confidence| is unimodal in T, holds. Its proof says that "
    "accuracy − confidence decreases with T; it increases, as confidence falls.",
    "The ECE objective “may not be strictly unimodal”: it hardly ever is (in our tests, in fewer "
    "than 1 in 10 random samples). Rows that change bin make it jump. Golden section then finds some "
    "temperature that is locally good.",
    "Bins of equal numbers of rows do not ensure unimodality either, though the paper says so: in each "
    "bin the gap is monotone, but a sum of absolute values of monotone functions can have two minima, and "
    "rows change their order with T.",
    "“Only two numbers are revealed” (Section 1): each source sends K + 1 noisy gaps, one for each "
    "temperature that it is asked about.",
    "Acc-T “has smaller L1 sensitivity … than the other methods” (Section 4): than NLL-T (10) and histogram "
    "binning (2), yes; ECE-T's is 1, as is Acc-T's. What ECE-T pays for is noise in 15 bins instead of "
    "one number.",
)
