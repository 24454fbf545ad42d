/* A group of DESIGN §7, small enough to be searched whole: two clients with three
 * operations, one witness, a log engine, two leaders one after the other, of which the first
 * may live on as a zombie, one leader change, one lease expiry, lost messages, a witness
 * that may restart, and a reader.
 *
 * Operations 0 and 1 are client 0's, one after the other: 1 acknowledges 0. Operation 2
 * is client 1's. 0 and 2 share a conflict key, 1 has one of its own. The answer of an
 * operation is how many were executed on its key before it, so a lost, doubled or
 * reordered one shows in an answer.
 *
 * Constants are set from the environment when a search begins, so that one program serves
 * all (python -m chaos.model): how much may go wrong, and which rule is broken. */

#define OPS 3
#define KEY(op) ((op) == 1)
#define OF(op) ((op) == 2)
/* What the log holds: an operation as itself, else: */
#define REGISTERED(c) (8 + (c))
#define REMOVED(c) (16 + (c))
#define LOG_MAX 8
#define QUEUE_MAX 5

/* The rules that a search can break; behind each the invariant of DESIGN §7. */
#define KEPT 0
#define WITNESS_UNASKED 1              /* 1 */
#define CONFLICT_ACCEPTED 2            /* 2 */
#define CONFIGURATION_UNCHECKED 3      /* 2 */
#define RESTARTED_WITNESS_BELIEVED 4   /* 2 */
#define WITNESS_NOT_FROZEN 5           /* 2 */
#define CONFLICT_ANSWERED 6            /* 3 */
#define UNREGISTERED_ANSWERED 7        /* 3 */
#define APPEND_UNCONDITIONAL 8         /* 4 */
#define SERVES_WITHOUT_WITNESS 9       /* 5 */
#define LIST_READ_BEFORE_NUMBER 10     /* 5 */
#define TRACKERS_NOT_ASKED 11          /* 6 */
#define ACKNOWLEDGED_DURING_REPLAY 12  /* 6 */
#define REMOVED_BEFORE_SYNC 13         /* 7 */
#define DUPLICATE_WITHOUT_SYNC_STATE 14 /* 9 */
#define SYNC_BY_ANOTHER_LEADER 15      /* 9 */
#define READ_UNSYNCED 16               /* 10 */
#define LEASE_UNASKED 17               /* 10 */
#define LEASE_NOT_WAITED_FOR 18        /* 10 */
#define UNSYNCED_COLLECTED 19          /* 12 */
#define IDENTITY_REDRAWN 20            /* DESIGN §3: one identity for all attempts */
#define LATE_START_BELIEVED 21         /* 2 */

hidden byte broken, losses_allowed, removals_allowed, restarts_allowed, reads_allowed;
hidden byte registered; /* the log knows both clients at the start */

mtype:role = { STANDBY, LEADING, STOPPED };
mtype:witness = { NORMAL, FROZEN, UNLISTED };
/* What a client has of its call; and what it told its caller in the end. */
mtype:answer = { NONE, FAST, SYNCED, EXPIRED };
mtype:end = { OPEN, COMPLETE, UNKNOWN, NOT_EXECUTED };

typedef Replica {
  mtype:role role;
  byte configuration;
  bit done[OPS];       /* known to the trackers: running, recorded or acknowledged */
  byte result[OPS];
  byte executed[2];    /* on each key: the user's state */
  byte queue[QUEUE_MAX];
  byte queued;
  bit known[2];        /* registered, in the log or before its first operation in the queue */
  bit logged[2];       /* its registration is in the log */
  bit gone;            /* client 1 was removed */
}

Replica replica[2];

/* Scratch of one atomic step, no part of the state. */
hidden byte i, k, found, go_on;

/* The log engine. */
byte current = 1;
byte entry[LOG_MAX];
byte tail;
bit in_log[OPS];

/* The witness. */
mtype:witness mode = NORMAL;
byte listed = 1;
bit held[OPS];
/* What a new leader read from it, in the step that froze it: a witness that restarts
 * between the two must not look empty. */
bit fetched[OPS];

/* What the clients were told. */
mtype:end end[OPS];
byte told[OPS];
byte read_back;        /* the highest value read */

bit lease = 1;         /* the first leader's, by its own clock */
bit serving;           /* the second leader serves */
bit quiet;             /* nothing goes wrong any more */
byte losses, removals;
byte clients_left = 2;
bit judged;

inline conflicts(r, op, verdict) {
  verdict = 0;
  i = 0;
  do
  :: i < replica[r].queued ->
     if
     :: replica[r].queue[i] < OPS && replica[r].queue[i] != op &&
        KEY(replica[r].queue[i]) == KEY(op) -> verdict = 1
     :: else
     fi;
     i++
  :: else -> break
  od
}

inline enqueue(r, what) {
  replica[r].queue[replica[r].queued] = what;
  replica[r].queued++
}

/* The conditional append: all that is queued, or the leader steps down (4). */
inline append(r, ok) {
  if
  :: replica[r].configuration == current || broken == APPEND_UNCONDITIONAL ->
     i = 0;
     do
     :: i < replica[r].queued ->
        entry[tail] = replica[r].queue[i];
        if
        :: entry[tail] < OPS ->
           assert(!in_log[entry[tail]]);  /* exactly once */
           in_log[entry[tail]] = 1
        :: entry[tail] >= REGISTERED(0) && entry[tail] < REMOVED(0) ->
           replica[r].logged[entry[tail] - REGISTERED(0)] = 1
        :: else
        fi;
        replica[r].queue[i] = 0;
        tail++;
        i++
     :: else -> break
     od;
     replica[r].queued = 0;
     ok = 1
  :: else ->
     /* It drops its waiting answers, and its state. */
     replica[r].role = STOPPED;
     ok = 0
  fi
}

inline run_handler(r, op) {
  replica[r].result[op] = replica[r].executed[KEY(op)];
  replica[r].executed[KEY(op)]++;
  replica[r].done[op] = 1
}

/* A call arrives at a leader (DESIGN §4, then §7). */
inline execute(r, number, op, got) {
  if
  :: replica[r].role != LEADING || replica[r].configuration != number -> got = NONE
  :: else ->
     if
     :: replica[r].done[op] && broken != IDENTITY_REDRAWN ->
        /* 9: a duplicate's answer is final when its entry is in the log. */
        got = (in_log[op] || broken == DUPLICATE_WITHOUT_SYNC_STATE -> SYNCED : FAST)
     :: else ->
        if
        :: !replica[r].known[OF(op)] && (r == 1 || replica[r].gone) -> got = EXPIRED
        :: else ->
           /* 3: what does not commute, or whose client the log does not know, syncs first. */
           conflicts(r, op, found);
           go_on = (found && broken != CONFLICT_ANSWERED) ||
                   (!replica[r].logged[OF(op)] && broken != UNREGISTERED_ANSWERED);
           if
           :: !replica[r].known[OF(op)] ->
              enqueue(r, REGISTERED(OF(op)));
              replica[r].known[OF(op)] = 1
           :: else
           fi;
           run_handler(r, op);
           enqueue(r, op);
           got = FAST;
           if
           :: go_on -> append(r, found); got = (found -> SYNCED : NONE)
           :: else
           fi
        fi
     fi
  fi;
  value = replica[r].result[op]
}

/* A request is recorded on the witness (2). */
inline record(number, op, verdict) {
  verdict = 0;
  if
  :: (mode == NORMAL || (mode == UNLISTED && broken == RESTARTED_WITNESS_BELIEVED) ||
      (mode == FROZEN && broken == WITNESS_NOT_FROZEN)) &&
     (listed == number || broken == CONFIGURATION_UNCHECKED) ->
     verdict = 1;
     i = 0;
     do
     :: i < OPS ->
        if
        :: held[i] && i != op && KEY(i) == KEY(op) && broken != CONFLICT_ACCEPTED ->
           verdict = 0
        :: else
        fi;
        i++
     :: else -> break
     od;
     if :: verdict -> held[op] = 1 :: else fi
  :: else
  fi
}

proctype Client(byte op) {
  byte value, number;
  bit accepted, again;
  mtype:answer got;

send:
  atomic {
    /* Whichever leader the client knows: the first, or once it serves, the second. */
    if
    :: !quiet -> number = 1
    :: serving -> number = 2
    fi;
    accepted = 0;
    got = NONE;
    value = 0
  }
  if
  :: atomic { record(number, op, accepted) }
     atomic { execute(number - 1, number, op, got) }
  :: atomic { execute(number - 1, number, op, got) }
     atomic { record(number, op, accepted) }
  fi;
  if
  :: atomic { !quiet && losses < losses_allowed && got != NONE -> losses++; got = NONE }
  :: atomic { !quiet && losses < losses_allowed && accepted -> losses++; accepted = 0 }
  :: true
  fi;
  if
  :: atomic { got == FAST && !accepted && broken != WITNESS_UNASKED ->
       /* 9: a sync names identity and configuration. */
       if
       :: broken == SYNC_BY_ANOTHER_LEADER && replica[1].role == LEADING -> k = 1
       :: else -> k = number - 1
       fi;
       if
       :: replica[k].role == LEADING &&
          (replica[k].configuration == number || broken == SYNC_BY_ANOTHER_LEADER) ->
          append(k, found);
          got = (found -> SYNCED : NONE)
       :: else -> got = NONE
       fi
     }
  :: else
  fi;
  atomic {
    if
    :: got == NONE -> again = 1; goto send
    :: got == EXPIRED -> end[op] = (again -> UNKNOWN : NOT_EXECUTED); clients_left--
    :: else ->
       end[op] = COMPLETE;
       told[op] = value;
       if
       :: op == 0 -> op = 1; again = 0; goto send
       :: else -> clients_left--
       fi
    fi;
    got = NONE; accepted = 0; value = 0; number = 0; again = 0
  }
}

#define COLLECTIBLE(op) \
  (held[op] && (in_log[op] || (broken == UNSYNCED_COLLECTED && replica[r].done[op])))

/* What leaders do by themselves: sync now and then, collect on the witness, end a lease. */
active proctype Background() {
  byte r;

  do
  :: atomic { replica[r].role == LEADING && replica[r].queued > 0 -> append(r, found) }
  :: atomic {
       /* 12: only what is synced. */
       replica[r].role == LEADING && mode == NORMAL && listed == replica[r].configuration &&
       (COLLECTIBLE(0) || COLLECTIBLE(1) || COLLECTIBLE(2)) ->
       k = 0;
       do
       :: k < OPS -> if :: COLLECTIBLE(k) -> held[k] = 0 :: else fi; k++
       :: else -> break
       od
     }
  :: atomic {
       /* 7: behind everything of that client. */
       !quiet && removals < removals_allowed && replica[r].role == LEADING &&
       replica[r].known[1] ->
       removals++;
       replica[r].gone = 1;
       replica[r].known[1] = 0;
       if
       :: broken == REMOVED_BEFORE_SYNC && replica[r].logged[1] &&
          replica[r].configuration == current ->
          entry[tail] = REMOVED(1);
          tail++
       :: else -> enqueue(r, REMOVED(1)); append(r, found)
       fi
     }
  :: atomic { replica[r].role != LEADING && r == 0 && serving -> r = 1 }
  :: atomic { r == 0 && quiet && replica[0].role == LEADING && replica[0].queued == 0 -> r = 1 }
  :: atomic { judged -> break }
  od
}

/* 10: a lease ends by itself, and a leader without one answers no reads. */
proctype Time() {
  lease = 0
}

active proctype FirstLeaderDies() {
  if
  :: atomic { replica[0].role == LEADING && !quiet -> replica[0].role = STOPPED }
  :: true
  fi
}

proctype WitnessRestarts() {
  if
  :: atomic { !quiet -> held[0] = 0; held[1] = 0; held[2] = 0; mode = UNLISTED };
     /* Its number was forgotten, too: a start of an older leader's comes late. */
     if
     :: atomic { mode == UNLISTED -> mode = NORMAL; listed = 0 }
     :: true
     fi
  :: true
  fi
}

inline freeze() {
  mode = FROZEN;
  i = 0;
  do
  :: i < OPS -> fetched[i] = held[i]; i++
  :: else -> break
  od
}

inline read_log() {
  i = 0;
  do
  :: i < tail ->
     if
     :: entry[i] < OPS -> run_handler(1, entry[i])
     :: entry[i] >= REGISTERED(0) && entry[i] < REMOVED(0) ->
        replica[1].known[entry[i] - REGISTERED(0)] = 1;
        replica[1].logged[entry[i] - REGISTERED(0)] = 1
     :: entry[i] >= REMOVED(0) ->
        replica[1].known[entry[i] - REMOVED(0)] = 0;
        replica[1].gone = 1
     fi;
     i++
  :: else -> break
  od
}

/* Invariant 5, step by step. */
active proctype TakeOver() {
  byte old;

  !lease || broken == LEASE_NOT_WAITED_FOR;
  if
  :: broken == LIST_READ_BEFORE_NUMBER ->
     atomic { read_log(); old = current }
     atomic { current++; replica[1].configuration = current }
  :: else ->
     atomic { old = current; current++; replica[1].configuration = current }
     atomic { read_log() }
  fi;
  /* A witness of that list which never restarted under it: without one it waits. */
  if
  :: atomic { (mode == NORMAL || (mode == UNLISTED && broken == RESTARTED_WITNESS_BELIEVED)) &&
              (listed == old || broken == LATE_START_BELIEVED) -> freeze() }
  :: broken == SERVES_WITHOUT_WITNESS
  fi;
  /* Its requests, in any order, filtered by the trackers; acknowledgements are ignored (6). */
  do
  :: atomic {
       if
       :: fetched[0] -> k = 0
       :: fetched[1] -> k = 1
       :: fetched[2] -> k = 2
       :: else -> break
       fi;
       fetched[k] = 0;
       if
       :: replica[1].known[OF(k)] && (!replica[1].done[k] || broken == TRACKERS_NOT_ASKED) ->
          run_handler(1, k);
          enqueue(1, k);
          if
          :: broken == ACKNOWLEDGED_DURING_REPLAY && k == 1 -> replica[1].done[0] = 1
          :: else
          fi
       :: else
       fi
     }
  od;
  atomic {
    append(1, found);
    mode = NORMAL;
    listed = current;
    held[0] = 0; held[1] = 0; held[2] = 0;
    replica[1].role = LEADING;
    old = 0;
    serving = 1
  }
  /* Some time after it, faults stop, and clients look for the new leader. */
  quiet = 1
}

/* 10: linearizable reads of the shared key. */
proctype Reader() {
  byte r, seen, value, reads;
  bit good, readable;

  do
  :: reads < reads_allowed ->
     atomic {
       seen = (end[0] == COMPLETE) + (end[2] == COMPLETE);
       /* And what was read before. */
       seen = (seen < read_back -> read_back : seen);
       if
       :: replica[0].role == LEADING -> r = 0
       :: replica[1].role == LEADING -> r = 1
       fi
     }
     atomic {
       if
       :: replica[r].role == LEADING ->
          readable = 1;
          conflicts(r, 3, found);  /* 3 shares the key of 0 and 2 */
          if
          :: found && broken != READ_UNSYNCED -> append(r, readable)
          :: else
          fi;
          value = replica[r].executed[0]
       :: else -> readable = 0
       fi
     }
     atomic {
       good = r == 1 || lease || broken == LEASE_UNASKED;
       if
       :: good && readable -> assert(value >= seen); read_back = value
       :: else
       fi;
       reads++;
       seen = 0; value = 0; readable = 0; good = 0; r = 0
     }
  :: else -> break
  od
}

/* When everything is over: what was told is what stands. */
active proctype Judge() {
  atomic {
    quiet && clients_left == 0 && replica[1].queued == 0 ->
    found = 0;
    i = 0;
    do
    :: i < tail ->
       if :: entry[i] < OPS && KEY(entry[i]) == 0 -> found++ :: else fi;
       i++
    :: else -> break
    od;
    assert(found >= read_back);      /* what was read does not go away */
    k = 0;
    do
    :: k < OPS ->
       go_on = 0;                    /* how many stand before it on its key */
       found = 0;
       i = 0;
       do
       :: i < tail ->
          if
          :: entry[i] == k -> found = 1; break
          :: entry[i] < OPS && entry[i] != k && KEY(entry[i]) == KEY(k) -> go_on++
          :: else
          fi;
          i++
       :: else -> break
       od;
       assert(end[k] != COMPLETE || (found && told[k] == go_on));
       assert(end[k] != NOT_EXECUTED || !found);
       k++
    :: else -> break
    od;
    judged = 1
  }
}

init {
  d_step {
    c_code {
      broken = getenv("BROKEN") ? atoi(getenv("BROKEN")) : 0;
      losses_allowed = getenv("LOSSES") ? atoi(getenv("LOSSES")) : 0;
      removals_allowed = getenv("REMOVALS") ? atoi(getenv("REMOVALS")) : 0;
      restarts_allowed = getenv("RESTARTS") ? atoi(getenv("RESTARTS")) : 0;
      reads_allowed = getenv("READS") ? atoi(getenv("READS")) : 0;
      registered = getenv("REGISTERED") ? atoi(getenv("REGISTERED")) : 0;
    };
    replica[0].role = LEADING;
    replica[0].configuration = current;
    replica[1].role = STANDBY;
    end[0] = OPEN; end[1] = OPEN; end[2] = OPEN
  };
  atomic {
    if
    :: registered ->
       enqueue(0, REGISTERED(0));
       enqueue(0, REGISTERED(1));
       append(0, found);
       replica[0].known[0] = 1;
       replica[0].known[1] = 1
    :: else
    fi;
    run Client(0);
    run Client(2);
    if :: restarts_allowed -> run WitnessRestarts() :: else fi;
    if :: reads_allowed -> run Time(); run Reader() :: else -> lease = 0 fi
  }
}

/* Everybody is answered in the end, once nothing goes wrong any more. */
ltl answered { <> judged }
