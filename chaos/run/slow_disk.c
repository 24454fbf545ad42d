/* The disk of one process, slower than it is: preloaded before libc.
 *
 * RIFL_SLOW_DISK names a file that chaos.run rewrites while the process runs. What is written
 * into files takes so much longer, more where a file ends so far, and so does each sync of one;
 * what takes no longer is not counted. What a process says (its standard
 * streams), and what the run notes of it (*.jsonl), are as fast as ever.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define NEXT(name)                                                   \
  ({                                                                 \
    static __typeof__(name) *next;                                   \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);   \
    next;                                                            \
  })

/* As chaos/run/slow_disk.py writes it. */
struct delays {
  int64_t write_ns, grow_ns, sync_ns, delayed;
};

static struct delays *delays;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RIFL_SLOW_DISK");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(NULL, sizeof *delays, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) delays = found;
}

static int is_data(int file, struct stat *told) {
  char link[32], name[4096];
  if (file <= STDERR_FILENO || fstat(file, told) || !S_ISREG(told->st_mode)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, name, sizeof name);
  return size < 6 || memcmp(name + size - 6, ".jsonl", 6) != 0;
}

static void wait_ns(int64_t ns) {
  if (ns <= 0) return;
  __atomic_fetch_add(&delays->delayed, 1, __ATOMIC_RELAXED);
  struct timespec left = {.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
  while (nanosleep(&left, &left) && errno == EINTR) continue;
}

#define HERE (-1)

/* Both before the call, so that what it leaves in errno stays. */
static void before_write(int file, off64_t at) {
  struct stat told;
  if (!delays) return;
  int64_t write_ns = __atomic_load_n(&delays->write_ns, __ATOMIC_RELAXED);
  int64_t grow_ns = __atomic_load_n(&delays->grow_ns, __ATOMIC_RELAXED);
  if (write_ns + grow_ns <= 0 || !is_data(file, &told)) return;
  if (at == HERE) at = fcntl(file, F_GETFL) & O_APPEND ? told.st_size : lseek(file, 0, SEEK_CUR);
  wait_ns(write_ns + (at >= told.st_size ? grow_ns : 0));
}

static void before_sync(int file) {
  struct stat told;
  if (!delays) return;
  int64_t sync_ns = __atomic_load_n(&delays->sync_ns, __ATOMIC_RELAXED);
  if (sync_ns > 0 && is_data(file, &told)) wait_ns(sync_ns);
}

#define SLOW(result, name, given, args, before) \
  result name given {                           \
    before;                                     \
    return NEXT(name) args;                     \
  }
#define SLOW_ALIKE(result, name, given, args, before) \
  SLOW(result, name, given, args, before)             \
  SLOW(result, name##64, given, args, before)

SLOW(ssize_t, write, (int file, const void *from, size_t size), (file, from, size),
     before_write(file, HERE))
SLOW_ALIKE(ssize_t, pwrite, (int file, const void *from, size_t size, off64_t at),
           (file, from, size, at), before_write(file, at))
SLOW(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count),
     before_write(file, HERE))
SLOW_ALIKE(ssize_t, pwritev, (int file, const struct iovec *from, int count, off64_t at),
           (file, from, count, at), before_write(file, at))
SLOW(ssize_t, pwritev2, (int file, const struct iovec *from, int count, off64_t at, int flags),
     (file, from, count, at, flags), before_write(file, at))
SLOW(ssize_t, pwritev64v2, (int file, const struct iovec *from, int count, off64_t at, int flags),
     (file, from, count, at, flags), before_write(file, at))
SLOW_ALIKE(int, ftruncate, (int file, off64_t size), (file, size),
           before_write(file, 0))
SLOW(int, fsync, (int file), (file), before_sync(file))
SLOW(int, fdatasync, (int file), (file), before_sync(file))
