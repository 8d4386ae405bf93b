#define LOCKSTEP_KERNELS kAvx2Kernels
#include "lockstep/collective/kernels_body.h"
