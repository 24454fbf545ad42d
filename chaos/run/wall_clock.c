/* The wall clock of one process, ahead of the machine's or behind it: preloaded before libc.
 *
 * RIFL_WALL_CLOCK names a file that chaos.run rewrites while the process runs. Only what is
 * read from CLOCK_REALTIME moves; monotonic clocks, sleeps and time-outs stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define NEXT(name)                                                   \
  ({                                                                 \
    static __typeof__(name) *next;                                   \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);   \
    next;                                                            \
  })

/* As chaos/run/wall_clock.py writes it. A new state is written beside the one in force,
 * and then put in force by one store. */
struct clock {
  int64_t in_force;
  struct {
    int64_t since_ns, ahead_ns, drift_ppb;
  } states[2];
  int64_t reads;
};

static struct clock *moved;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RIFL_WALL_CLOCK");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(NULL, sizeof *moved, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) moved = found;
}

static int64_t true_ns(void) {
  struct timespec now;
  NEXT(clock_gettime)(CLOCK_REALTIME, &now);
  return now.tv_sec * SECOND + now.tv_nsec;
}

static int64_t ahead_ns(int64_t at_ns) {
  if (!moved) return 0;
  __atomic_fetch_add(&moved->reads, 1, __ATOMIC_RELAXED);
  int which = __atomic_load_n(&moved->in_force, __ATOMIC_ACQUIRE) & 1;
  double since_ns = (double)(at_ns - moved->states[which].since_ns);
  return moved->states[which].ahead_ns +
         (int64_t)(since_ns * (double)moved->states[which].drift_ppb / 1e9);
}

static int64_t now_ns(void) {
  int64_t now = true_ns();
  return now + ahead_ns(now);
}

static struct timespec spec(int64_t ns) {
  return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
    return NEXT(clock_gettime)(clock, now);
  *now = spec(now_ns());
  return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  int64_t ns = now_ns();
  *now = (struct timeval){.tv_sec = ns / SECOND, .tv_usec = ns % SECOND / 1000};
  return 0;
}

time_t time(time_t *kept) {
  time_t now = now_ns() / SECOND;
  if (kept) *kept = now;
  return now;
}

/* How a Python that was built for an old libc waits for a lock with a time-out. */
int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  int64_t until_ns = until->tv_sec * SECOND + until->tv_nsec;
  struct timespec then = spec(until_ns - ahead_ns(true_ns()));
  return NEXT(sem_timedwait)(semaphore, &then);
}
