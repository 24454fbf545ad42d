/* The log of DESIGN-LOG §13, small enough to be searched whole: two producers, each with two
 * tries of a transaction of three messages under two tags; whoever decides them; a sweeper that
 * retires producers, also of writers that are alive; lost replies and crashes.
 *
 * Alone (grouped = 0) each writer appends its own markers. Grouped, a coordinator commits one try
 * of each writer by one marker, as a Spark driver commits its tasks': a writer offers what it has
 * pending, and may roll it back and try again.
 *
 * At the end a reader follows each tag as §13 (C3, C4) says. Each message of a try that was told
 * committed is read once, of a try told rolled back never, of any try all or none.
 *
 * Constants are set from the environment when a search begins (python -m chaos.model). */

#define WRITERS 2
#define COORDINATOR 2
#define TRIES 2
/* One writer that tries again is enough. */
#define TRIES_OF(p) ((p) == 0 -> TRIES : 1)
#define MESSAGES 3
/* The tag of a try's message: the third is under the first one's. */
#define TAG(m) ((m) == 1)
#define MESSAGE(p, t, m) ((p) * 6 + (t) * 3 + (m))
#define LOG_MAX 22
#define SEQ_MAX 10

/* The rules that a search can break; behind each its rule of DESIGN-LOG. */
#define KEPT 0
#define BEGINS_UNCOMPARED 1       /* C1 */
#define HIGHEST_UNCOVERED 2       /* C1 */
#define TRY_NOT_ROLLED_BACK 3     /* C1 */
#define RETIRED_IN_TWO_STEPS 4    /* C2 */
#define RETIRED_UNCONDITIONALLY 5 /* C2 */
#define RETIRED_APPENDS 6         /* C2 */
#define ANSWER_NOT_KEPT 7         /* L3 */
#define SPAN_UNBOUNDED 8          /* C4 */

byte broken, losses_allowed, crashes_allowed, retires_allowed, grouped;

mtype:kind = { NOTHING, PENDING, MARKER, ROLLBACK };
mtype:told = { UNKNOWN, COMMITTED, ROLLED_BACK };
mtype:outcome = { DONE, RETIRED, GONE };

/* The log: an entry's kind, its producer, what it is about. */
mtype:kind kind[LOG_MAX];
byte owner[LOG_MAX];
byte message[LOG_MAX];
/* Of markers: where the spans began, by producer and tag; 0: it names none. */
byte begins[88];
#define BEGIN(lsn, p, g) begins[(lsn) * 4 + (p) * 2 + (g)]
byte tail = 1;                /* the next LSN */

/* What the log keeps of each producer. */
byte highest[3];
bit retired[3];
byte span[4];
#define SPAN(p, g) span[(p) * 2 + (g)]
bit appended[30];             /* the answer to (producer, seq) is kept */
#define ANSWERED(p, s) appended[(p) * SEQ_MAX + (s)]

/* What a grouped writer offers: a try, its begins, and the seq through which. */
typedef Offer { bit there; byte try; byte through; byte begin[2] }
Offer offer[WRITERS];

mtype:told told[4];           /* by writer and try */
#define TOLD(p, t) told[(p) * TRIES + (t)]
byte losses, crashes, retires;
byte running;

/* Scratch of one atomic step, no part of the state. */
hidden byte i, j;
bit refused;
hidden byte delivered[12];

#define LOSES (losses < losses_allowed)
#define CRASHES (crashes < crashes_allowed)

/* A message nobody sees yet, as the producer's seq: once (L3). */
inline pend(p, s, m, what, result) {
  if
  :: ANSWERED(p, s) && broken != ANSWER_NOT_KEPT -> result = DONE
  :: else ->
     if
     :: retired[p] && broken != RETIRED_APPENDS -> result = RETIRED
     :: else ->
        assert(tail < LOG_MAX);
        kind[tail] = PENDING;
        owner[tail] = p;
        message[tail] = what;
        if :: SPAN(p, TAG(m)) == 0 -> SPAN(p, TAG(m)) = tail :: else fi;
        tail++;
        highest[p] = s;
        ANSWERED(p, s) = 1;
        result = DONE
     fi
  fi
}

/* May a marker decide this of producer q? (C1) */
inline judge(q, last, begin0, begin1) {
  if
  :: retired[q] -> refused = 1   /* its begins are gone, too: breaking this alone shows nothing */
  :: highest[q] != last && broken != HIGHEST_UNCOVERED -> refused = 1
  :: (SPAN(q, 0) != begin0 || SPAN(q, 1) != begin1) && broken != BEGINS_UNCOMPARED -> refused = 1
  :: else
  fi
}

inline name(q, begin0, begin1) {
  BEGIN(tail, q, 0) = begin0;
  BEGIN(tail, q, 1) = begin1;
  SPAN(q, 0) = 0;
  SPAN(q, 1) = 0
}

/* A writer's own marker, or rollback: the answer, or the step that decides. */
inline decide(p, s, what, begin0, begin1, result) {
  if
  :: ANSWERED(p, s) -> result = DONE
  :: else ->
     if
     :: retired[p] && broken != RETIRED_APPENDS -> result = RETIRED
     :: else ->
        refused = 0;
        judge(p, s - 1, begin0, begin1);
        if
        :: refused -> result = GONE
        :: else ->
           assert(tail < LOG_MAX);
           kind[tail] = what;
           owner[tail] = p;
           name(p, begin0, begin1);
           tail++;
           highest[p] = s;
           ANSWERED(p, s) = 1;
           result = DONE
        fi
     fi
  fi
}

inline begin_anew() {
  begin[0] = 0; begin[1] = 0; s++; t++; m = 0;
  if :: t < TRIES_OF(p) -> stage = SENDING :: else -> stage = ENDED fi
}

mtype:phase = { SENDING, ASKING, OFFERING, COMMITTING, ROLLING_BACK, ENDED };

/* Each step is one of the log's, or one that others may meet. A lost reply: the same again. */
proctype Writer(byte p) {
  byte t, m, s = 1;
  byte begin[2];
  mtype:phase stage = SENDING;
  mtype:outcome result;
  do
  :: atomic {
       stage == SENDING ->
       pend(p, s, m, MESSAGE(p, t, m), result);
       if
       :: result != DONE -> stage = ENDED
       :: result == DONE -> stage = ASKING
       :: result == DONE && LOSES -> losses++
       fi
     }
  :: atomic {
       /* Where the span began is asked for afterwards: it may be decided by then. */
       stage == ASKING ->
       if :: begin[TAG(m)] == 0 -> begin[TAG(m)] = SPAN(p, TAG(m)) :: else fi;
       s++;
       m++;
       if
       :: m == MESSAGES && !grouped -> stage = COMMITTING
       :: m == MESSAGES && grouped && t + 1 < TRIES_OF(p) -> stage = ROLLING_BACK
       :: m == MESSAGES && t == 0 && !grouped -> stage = ROLLING_BACK
       :: m == MESSAGES && grouped -> stage = ENDED
       :: m == MESSAGES - 1 && grouped -> stage = OFFERING
       :: m < MESSAGES - 1 || (m < MESSAGES && !grouped) -> stage = SENDING
       fi
     }
  :: atomic {
       /* While the last append is on its way. */
       stage == OFFERING ->
       offer[p].there = 1; offer[p].try = t; offer[p].through = s;
       offer[p].begin[0] = begin[0]; offer[p].begin[1] = begin[1];
       stage = SENDING
     }
  :: atomic {
       stage == COMMITTING ->
       decide(p, s, MARKER, begin[0], begin[1], result);
       if
       :: result != DONE -> TOLD(p, t) = ROLLED_BACK; stage = ENDED
       :: result == DONE -> TOLD(p, t) = COMMITTED; begin_anew()
       :: result == DONE && LOSES -> losses++
       fi
     }
  :: atomic {
       /* The try failed: its own rollback before the next one begins (C1). */
       stage == ROLLING_BACK ->
       if
       :: broken == TRY_NOT_ROLLED_BACK ->
          TOLD(p, t) = ROLLED_BACK; t++; m = 0; stage = SENDING
       :: else ->
          decide(p, s, ROLLBACK, begin[0], begin[1], result);
          if
          :: result != DONE -> stage = ENDED
          :: result == DONE -> TOLD(p, t) = ROLLED_BACK; begin_anew()
          :: result == DONE && LOSES -> losses++
          fi
       fi
     }
  :: atomic { stage != ENDED && CRASHES -> crashes++; stage = ENDED }
  :: atomic { stage == ENDED -> running--; break }
  od
}

/* Commits a try of each writer by one marker. */
proctype Coordinator() {
  Offer mine[WRITERS];
  byte q;
  bit denied;
  do
  :: atomic {
       q < WRITERS && offer[q].there ->
       mine[q].try = offer[q].try; mine[q].through = offer[q].through;
       mine[q].begin[0] = offer[q].begin[0]; mine[q].begin[1] = offer[q].begin[1];
       q++
     }
  :: atomic { q < WRITERS && running == 1 && !offer[q].there -> break }
  :: atomic {
       q == WRITERS ->
       refused = 0;
       if
       :: ANSWERED(COORDINATOR, 1)
       :: else ->
          judge(0, mine[0].through, mine[0].begin[0], mine[0].begin[1]);
          judge(1, mine[1].through, mine[1].begin[0], mine[1].begin[1]);
          if
          :: !refused ->
             assert(tail < LOG_MAX);
             kind[tail] = MARKER;
             owner[tail] = COORDINATOR;
             name(0, mine[0].begin[0], mine[0].begin[1]);
             name(1, mine[1].begin[0], mine[1].begin[1]);
             tail++;
             ANSWERED(COORDINATOR, 1) = 1
          :: else
          fi
       fi;
       denied = refused;
       if
       :: denied -> break
       :: !denied -> TOLD(0, mine[0].try) = COMMITTED; TOLD(1, mine[1].try) = COMMITTED; break
       :: !denied && LOSES -> losses++
       fi
     }
  :: atomic { CRASHES -> crashes++; break }
  od;
  running--
}

#define OPEN(p) (SPAN(p, 0) || SPAN(p, 1))

/* Read both tags to the end, and compare with what was told. */
inline check() {
  d_step {
    i = 0;
    do
    :: i < 12 -> delivered[i] = 0; i++
    :: else -> break
    od;
    i = 1;
    do
    :: i < tail ->
       if
       :: kind[i] == MARKER ->
          j = 1;
          do
          :: j < i ->
             if
             :: kind[j] == PENDING &&
                BEGIN(i, owner[j], TAG(message[j] % 3)) != 0 &&
                (BEGIN(i, owner[j], TAG(message[j] % 3)) <= j || broken == SPAN_UNBOUNDED) ->
                delivered[message[j]]++
             :: else
             fi;
             j++
          :: else -> break
          od
       :: else
       fi;
       i++
    :: else -> break
    od;
    /* Nothing stays undecided. */
    assert(!OPEN(0) && !OPEN(1));
    i = 0;
    do
    :: i < 4 ->
       assert(delivered[i * 3] <= 1);
       assert(delivered[i * 3] == delivered[i * 3 + 1]);
       assert(delivered[i * 3] == delivered[i * 3 + 2]);
       assert(told[i] != COMMITTED || delivered[i * 3] == 1);
       assert(told[i] != ROLLED_BACK || delivered[i * 3] == 0);
       i++
    :: else -> break
    od
  }
}

inline retire(p) {
  /* It looks, and then decides by what it saw, if that is still so. */
  do
  :: d_step { seen = highest[p]; begin0 = SPAN(p, 0); begin1 = SPAN(p, 1) };
     if
     :: atomic {
          retired[p] || broken == RETIRED_UNCONDITIONALLY ||
          (seen == highest[p] && begin0 == SPAN(p, 0) && begin1 == SPAN(p, 1)) ->
          if
          :: !retired[p] && (begin0 || begin1) ->
             assert(tail < LOG_MAX);
             kind[tail] = ROLLBACK;
             owner[tail] = p;
             name(p, begin0, begin1);
             tail++
          :: else
          fi;
          if :: broken != RETIRED_IN_TWO_STEPS -> retired[p] = 1 :: else fi
        };
        break
     :: atomic {
          !retired[p] && broken != RETIRED_UNCONDITIONALLY &&
          (seen != highest[p] || begin0 != SPAN(p, 0) || begin1 != SPAN(p, 1)) -> skip
        }
     fi
  od;
  retired[p] = 1
}

/* Retires producers: some at any time, and in the end whoever has something pending (C2). */
proctype Sweeper() {
  byte seen, begin0, begin1;
  do
  :: retires < retires_allowed && running -> retires++; retire(0)
  :: retires < retires_allowed && running && grouped -> retires++; retire(1)
  :: running == 0 && OPEN(0) && !retired[0] -> retire(0)
  :: running == 0 && OPEN(1) && !retired[1] -> retire(1)
  :: running == 0 && !(OPEN(0) && !retired[0]) && !(OPEN(1) && !retired[1]) -> break
  od;
  check()
}

init {
  d_step {
    c_code {
      now.broken = getenv("BROKEN") ? atoi(getenv("BROKEN")) : 0;
      now.losses_allowed = getenv("LOSSES") ? atoi(getenv("LOSSES")) : 0;
      now.crashes_allowed = getenv("CRASHES") ? atoi(getenv("CRASHES")) : 0;
      now.retires_allowed = getenv("RETIRES") ? atoi(getenv("RETIRES")) : 0;
      now.grouped = getenv("GROUPED") ? atoi(getenv("GROUPED")) : 0;
    };
    told[0] = UNKNOWN; told[1] = UNKNOWN; told[2] = UNKNOWN; told[3] = UNKNOWN
  };
  atomic {
    running = 1;
    run Writer(0);
    if :: grouped -> running = 3; run Writer(1); run Coordinator() :: else fi;
    run Sweeper()
  }
}
