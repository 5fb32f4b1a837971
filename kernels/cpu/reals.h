/* BODY for REAL = float, and again for double. */

#define JOINED(a, b) a##b
#define WITH(a, b) JOINED(a, b)

#undef REAL
#undef EXP
#undef NAMED
#define REAL float
#define EXP expf
#define NAMED(name) WITH(name, _f32)
#define WIDTH_f32 LANES
typedef lanes vector_f32;
#include BODY
#undef REAL
#undef EXP
#undef NAMED

#define REAL double
#define EXP exp
#define NAMED(name) WITH(name, _f64)
#define WIDTH_f64 (LANES / 2)
typedef double vector_f64 __attribute__((vector_size(4 * LANES)));
#include BODY
