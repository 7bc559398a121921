"""The numbers of the default rule: all that were fitted by experiment, one a line.

A default fit releases one second moment and `N_ITER` sums of clipped gradients. If no bound on row
norms is public, units of the columns come first. The rule is explained in docs/defaults.md, and
benchmarks/trials.md has the experiments that chose the numbers.

In the comments, n mu is the number of records times the privacy budget as Gaussian differential
privacy, at a sensitivity of one. The snr is n mu over the effective dimension of the features.
"""

# The units of columns.
UNITS_FRACTION = 0.03  # of mu^2: costs the other releases 1.5 % of mu
MAX_COUNT_NOISE = 0.05  # of n: above this noise row norms are used, as too few elements would show
DETECTED_FRACTION = 0.02  # of n: rarer elements do not set the unit of a column
POOLED_SIZES = 3  # sizes: elements spread over a factor of 8 are detected together
SMALLEST_USUAL_SIZE = 1 / 32  # columns of this size to 1 keep their units, as one-hot codes have
N_MU_PER_SQUARED_NORM = 7.0  # learning from rows of norm l takes an n mu of 7 l^2
UNDETECTED_NORM = 8.0  # times the usual norm: too small a guess loses more than too large a one

# The second moment.
MOMENT_FRACTION = 0.15  # of mu^2: flat from 0.07 to 0.15
ROW_NORM = 2.0  # clipping norm of centered rows: 1.8 for nine numbers within 1/2 and an intercept

# The gradients.
N_ITER = 24  # iterations in a whitened space: 16 to 40 are alike
SATURATION_SNR = 200.0  # snr at which gradients of rows of typical norm are no longer clipped
CLIPPING_POWER = 1 / 3  # of the snr below that, and of the curvature in steps
TOTAL_STEP_PER_SNR = 2.0  # early stopping: a total step W is a ridge of about 1 / W
MAX_STEP = 1.75  # a third of the step that diverges with Nesterov's method: curvature is noisy
MOSTLY_NOISE = 12.0  # times the part above the noise: a larger dimension of a diagonal is noise
PRIOR_FRACTION = 0.25  # of the ridge: strength of the prior; 0.1 to 0.5 are alike

# By theory or convention.
COUNT_FRACTION = 0.02  # of mu^2, for a count of labels with weights: costs the rest 1 % of mu
LEAST_COUNT_NOISE = 2.0  # sd: a class counts as that at least, or its noise would set its weight
FALSE_UNIT_RATE = 0.01  # fits in which noise sets the unit of one column, which is then lost
FALSE_NORM_RATE = 0.001  # fits in which noise sets the unit of all rows, which are then lost
MIDDLE_OF_SIZES = 0.75  # of the larger of two powers of two
MAX_COUNTED_COLUMNS = 2**16  # histograms of more columns take longer than the gradients
MAX_FULL_COLUMNS = 512  # the second moment of more columns takes longer than the gradients
N_ITER_PLAIN = 87  # iterations without momentum that move as far as N_ITER with it
CAUCHY_SCALE = 2.5  # of coefficients (Gelman et al. 2008)
MIN_RIDGE = 2.0**-30  # over the squared clipping norm: keeps condition numbers below 2^15
MIN_UNCLIPPED = 1e-6  # part of a second moment that is left after rows were clipped

# A numeric target.
MIN_MIDDLE_FRACTION = 0.01  # of mu^2, for the mean of y, and half of it at most
MIDDLE_NOISE = 1 / 16  # of half the range, the noise of the mean of y that is aimed at
DETECTED_TARGETS = 0.001  # of n: sizes of y that fewer records have are left out
INTERCEPT_FRACTION = 0.05  # of mu^2, for the last steps of the intercept
N_INTERCEPT = 6  # of these steps, the mean of whose last half is taken
INTERCEPT_STEP = 0.7  # after three steps 3 % of the error are left
INTERCEPT_CLIP = 2.0  # times the norm of the rule for one dimension: skewed residuals are the point
MIN_INTERCEPT_N_MU = 60.0  # with less, the steps' noise is larger than the bias that they remove
