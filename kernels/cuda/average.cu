/* What replicas average: weights and behind them the intercept, in fp32, in one buffer.

   `portion` writes it, times a share; `become` takes it apart again. `intercept` may be
   null where `more` is 0. grid = ceil((held + more) / 256), block = 256. */
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(256)
portion(const float *__restrict__ weights, s64 held, const double *__restrict__ intercept,
        int more, float share, float *__restrict__ buffer)
{
    s64 i = (s64)blockIdx.x * 256 + threadIdx.x;
    if (i < held)
        buffer[i] = weights[i] * share;
    else if (i < held + more)
        buffer[i] = (float)intercept[i - held] * share;
}
LAUNCHABLE(portion)

extern "C" __global__ void __launch_bounds__(256)
become(const float *__restrict__ buffer, s64 held, int more, float *__restrict__ weights,
       double *__restrict__ intercept)
{
    s64 i = (s64)blockIdx.x * 256 + threadIdx.x;
    if (i < held)
        weights[i] = buffer[i];
    else if (i < held + more)
        intercept[i - held] = buffer[i];
}
LAUNCHABLE(become)
