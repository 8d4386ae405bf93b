#define LOCKSTEP_KERNELS kBaselineKernels
#include "lockstep/collective/kernels_body.h"
