"""The calibrator's side: the loop, the methods, the sketch, maps, exact fits, metrics, evaluation."""
