/* A few threads that wait for parts of a call: see threads.h.

   Parts are claimed one by one, by the caller too, so that a thread which is late costs
   nothing but its help. The claim, a number that tells calls apart and the number of parts
   are one word: who claims a part knows that its call is still there. One call at a time
   is shared; another one meanwhile is done by its caller alone. Threads spin for a
   moment after a part and then sleep. They are made when they are first wanted, joined
   when the process ends, and made anew in a process that was forked. */

#include "threads.h"
#include "lanes.h"

#define GRAIN 10000 /* nanoseconds that are worth a part */

#if defined(_WIN32) /* no threads: the caller does it all */

int64_t hpcsgd_parts(double nanoseconds) { return nanoseconds < 0 ? 0 : 1; }

EXPORT void hpcsgd_set_threads(int64_t count, int64_t grain)
{
    (void)count, (void)grain;
}

void hpcsgd_share(int64_t parts, part_of what, void *work)
{
    for (int64_t i = 0; i < parts; i++)
        what(work, i, parts);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#define MOST 256
#define SPINS 2000 /* before a thread sleeps: some ten microseconds */

/* call number << 32 | parts << 16 | next part */
typedef uint64_t claim;
#define NUMBER(c) ((c) >> 32)
#define PARTS(c) ((int64_t)((c) >> 16 & 0xffff))
#define NEXT(c) ((int64_t)((c) & 0xffff))

static struct {
    _Atomic int64_t wanted, grain; /* threads with the caller; 0: not said, one */
    _Atomic claim now;
    _Atomic int64_t done;
    _Atomic(part_of) what;
    _Atomic(void *) work;
    _Atomic int asleep, ends;
    int64_t started;
    pthread_t thread[MOST];
} pool;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* one call, or a change */
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER; /* of those that sleep */
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;

INLINE void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Do parts of call `number` until none is left. */
static void take_parts(uint64_t number)
{
    claim now = atomic_load(&pool.now);
    while (NUMBER(now) == number && NEXT(now) < PARTS(now)) {
        part_of what = atomic_load_explicit(&pool.what, memory_order_relaxed);
        void *work = atomic_load_explicit(&pool.work, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&pool.now, &now, now + 1))
            continue;
        what(work, NEXT(now), PARTS(now));
        atomic_fetch_add(&pool.done, 1);
        now = atomic_load(&pool.now);
    }
}

static void sleep_until_called(uint64_t seen)
{
    pthread_mutex_lock(&door);
    atomic_fetch_add(&pool.asleep, 1);
    while (NUMBER(atomic_load(&pool.now)) == seen && !atomic_load(&pool.ends))
        pthread_cond_wait(&bell, &door);
    atomic_fetch_sub(&pool.asleep, 1);
    pthread_mutex_unlock(&door);
}

static void wake(void)
{
    if (!atomic_load(&pool.asleep))
        return;
    pthread_mutex_lock(&door);
    pthread_cond_broadcast(&bell);
    pthread_mutex_unlock(&door);
}

static void *serve(void *first)
{
    uint64_t seen = (uint64_t)(uintptr_t)first;
    while (!atomic_load(&pool.ends)) {
        int spins = 0;
        while (NUMBER(atomic_load(&pool.now)) == seen && spins++ < SPINS)
            pause_briefly();
        if (NUMBER(atomic_load(&pool.now)) == seen)
            sleep_until_called(seen);
        seen = NUMBER(atomic_load(&pool.now));
        take_parts(seen);
    }
    return 0;
}

/* `busy` is held. */
static void stop(void)
{
    atomic_store(&pool.ends, 1);
    wake();
    for (int64_t i = 0; i < pool.started; i++)
        pthread_join(pool.thread[i], 0);
    pool.started = 0;
    atomic_store(&pool.ends, 0);
}

/* Threads are not copied by a fork: the child begins without. */
static void forget(void)
{
    pthread_mutex_init(&busy, 0);
    pthread_mutex_init(&door, 0);
    pthread_cond_init(&bell, 0);
    pool.started = 0;
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.ends, 0);
}

static void watch_forks(void) { pthread_atfork(0, 0, forget); }

/* `busy` is held. Signals are for the threads of the program. */
static void start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    void *seen = (void *)(uintptr_t)NUMBER(atomic_load(&pool.now));
    for (; pool.started < atomic_load(&pool.wanted) - 1; pool.started++)
        if (pthread_create(&pool.thread[pool.started], 0, serve, seen))
            break; /* fewer do it too */
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* `grain` 0 is what pays; tests ask for less. */
EXPORT void hpcsgd_set_threads(int64_t count, int64_t grain)
{
    count = count < 1 ? 1 : count > MOST ? MOST : count;
    pthread_mutex_lock(&busy);
    if (pool.started >= count)
        stop();
    atomic_store(&pool.wanted, count);
    atomic_store(&pool.grain, grain);
    pthread_mutex_unlock(&busy);
}

int64_t hpcsgd_parts(double nanoseconds)
{
    int64_t wanted = atomic_load_explicit(&pool.wanted, memory_order_relaxed);
    if (wanted < 2)
        return 1;
    int64_t grain = atomic_load_explicit(&pool.grain, memory_order_relaxed);
    double parts = nanoseconds / (double)(grain ? grain : GRAIN);
    return parts < 2 ? 1 : parts < (double)wanted ? (int64_t)parts : wanted;
}

void hpcsgd_share(int64_t parts, part_of what, void *work)
{
    if (parts < 2 || pthread_mutex_trylock(&busy)) {
        for (int64_t i = 0; i < parts; i++)
            what(work, i, parts);
        return;
    }
    start();
    uint64_t number = (NUMBER(atomic_load(&pool.now)) + 1) & 0xffffffff;
    atomic_store(&pool.done, 0);
    atomic_store_explicit(&pool.what, what, memory_order_relaxed);
    atomic_store_explicit(&pool.work, work, memory_order_relaxed);
    atomic_store(&pool.now, number << 32 | (uint64_t)parts << 16);
    wake();
    take_parts(number);
    for (int spins = 0; atomic_load(&pool.done) < parts; spins++)
        if (spins < SPINS)
            pause_briefly();
        else
            sched_yield(); /* who holds the last part may wait for this core */
    pthread_mutex_unlock(&busy);
}

__attribute__((destructor)) static void join_all(void)
{
    pthread_mutex_lock(&busy); /* for ever: nothing is shared from here on */
    stop();
}

#endif
