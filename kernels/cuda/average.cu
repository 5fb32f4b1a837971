/* What replicas average: weights and behind them the intercept, in fp32, in one buffer.

   `portion` writes it, times a share; `become` takes it apart again. Weights are kept
   divided by `scale`, a power of two, and so nothing of it is rounded. `intercept` may be
   null where `more` is 0. grid = ceil((held + more) / 256), block = 256. */
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(256)
portion(const float *__restrict__ weights, s64 held, float scale,
        const double *__restrict__ intercept, int more, float share,
        float *__restrict__ buffer)
{
    s64 i = (s64)blockIdx.x * 256 + threadIdx.x;
    if (i < held)
        buffer[i] = weights[i] * scale * share;
    else if (i < held + more)
        buffer[i] = (float)intercept[i - held] * share;
}
LAUNCHABLE(portion)

extern "C" __global__ void __launch_bounds__(256)
become(const float *__restrict__ buffer, s64 held, float scale, int more,
       float *__restrict__ weights, double *__restrict__ intercept)
{
    s64 i = (s64)blockIdx.x * 256 + threadIdx.x;
    if (i < held)
        weights[i] = buffer[i] / scale;
    else if (i < held + more)
        intercept[i - held] = buffer[i];
}
LAUNCHABLE(become)
