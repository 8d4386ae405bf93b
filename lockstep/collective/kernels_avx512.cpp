#define LOCKSTEP_KERNELS kAvx512Kernels
#include "lockstep/collective/kernels_body.h"
