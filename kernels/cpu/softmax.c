/* The s steps of an exchange of softmax in one call. */

#include "lanes.h"

#include <math.h>

#define BODY "softmax_body.h"
#include "reals.h"
