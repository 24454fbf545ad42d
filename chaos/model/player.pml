/* The player of DESIGN-LOG §15, small enough to be searched whole: a log's messages, one player or
 * two (one of which woke up late), one target or two, one of which may hang for ever; connections
 * that break on either side, with what they carry; players that start anew.
 *
 * Target 1 is sent each message, target 0 each second one: in between it may be moved forward by
 * an empty delivery. Whoever does not have to move may be slow.
 *
 * A connection carries deliveries in order, and loses a suffix at most. One that the player gave
 * up may be served for a while longer, beside the next one.
 *
 * Constants are set from the environment when a search begins (python -m chaos.model). */

#define MESSAGES 3
#define QUEUE 1
#define WIRE 1

/* The rules that a search can break; behind each its rule of DESIGN-LOG. */
#define KEPT 0
#define TERMS_UNCHECKED 1        /* P3 */
#define END_UNLOCKED 2           /* P4 */
#define QUEUED_IN_RECOVERY 3     /* P4 */
#define INDEX_UNCONDITIONAL 4    /* P1 */
#define ANSWERED_BEFORE_COMMIT 5 /* P1 */
#define MOVED_IN_RECOVERY 6      /* P5 */
#define INDEX_NOT_ASKED 7        /* P5 */

byte broken, breaks_allowed, restarts_allowed, players, targets, hangs;

/* Of a player's target: down; connected; a recovery stream fetches; fetched to a fixed end; fed
 * by the main stream. */
mtype:state = { S, ASKED, RF, FC, N };

byte index[2];                   /* of a target, in its store */
byte acknowledged[2];            /* what players know of it: the log is trimmed up to there */

/* By player and target. */
#define AT(p, t) ((p) * 2 + (t))
#define TARGET(x) ((x) % 2)
#define PLAYER(x) ((x) / 2)
mtype:state state[4];
byte term[4];
byte sent[4];                    /* on this connection, or before it */
byte recovered[4];               /* where its recovery ends; the main stream goes on there */
chan queue0 = [QUEUE] of { byte, byte, bit };
chan queue1 = [QUEUE] of { byte, byte, bit };
chan queue2 = [QUEUE] of { byte, byte, bit };
chan queue3 = [QUEUE] of { byte, byte, bit };
chan queue[4];
byte dispatched[2];              /* by player */

/* By player, target and connection, of which the newest two are there. */
#define ON(x, n) ((x) * 2 + (n))
chan wire[8] = [WIRE] of { byte, byte, bit };
byte term_of[8];
chan answers[4] = [WIRE] of { byte, byte, bit };

byte breaks, restarts;

/* The message after ``at`` that a target is sent. */
#define NEXT(t, at) ((at) + 1 + ((t) == 0 && (at) % 2))
#define WANTED(t, at) ((t) == 1 || (at) % 2)
#define CURRENT(x) ON(x, term[x] % 2)
#define ALL_DELIVERED (NEXT(1, index[1]) > MESSAGES && (targets == 1 || hangs || NEXT(0, index[0]) > MESSAGES))

inline drain(channel) {
  do
  :: len(channel) > 0 -> channel?_, _, _
  :: else -> break
  od
}

/* Its queue is worth nothing any more: what is in it has this term. */
inline cut(x) {
  state[x] = S
}

inline dispatch_to(p, t) {
  x = AT(p, t);
  if
  :: state[x] != FC && state[x] != N && !(broken == QUEUED_IN_RECOVERY && state[x] == RF)
  :: (state[x] == FC || state[x] == N || (broken == QUEUED_IN_RECOVERY && state[x] == RF)) ->
     if
     :: dispatched[p] <= recovered[x]
     :: dispatched[p] > recovered[x] && WANTED(t, dispatched[p]) ->
        if
        :: len(queue[x]) == QUEUE -> cut(x)
        :: len(queue[x]) < QUEUE -> queue[x]!term[x], dispatched[p], 0
        fi
     :: dispatched[p] > recovered[x] && !WANTED(t, dispatched[p])
     :: dispatched[p] > recovered[x] && !WANTED(t, dispatched[p]) && state[x] == N && len(queue[x]) < QUEUE ->
        queue[x]!term[x], dispatched[p], 1
     fi
  fi;
  x = 0
}

/* The main stream; what it does to all targets is one step, under the dispatch lock. */
proctype Player(byte p) {
  byte x;
end:
  do
  :: atomic {
       dispatched[p] < MESSAGES ->
       dispatched[p]++;
       if :: targets == 2 -> dispatch_to(p, 0) :: else fi;
       dispatch_to(p, 1)
     }
  :: atomic {
       restarts < restarts_allowed ->
       restarts++;
       if :: targets == 2 -> cut(AT(p, 0)); drain(queue[AT(p, 0)]) :: else fi;
       cut(AT(p, 1));
       drain(queue[AT(p, 1)]);
       /* It starts at the lowest index. */
       dispatched[p] = index[1];
       if :: targets == 2 && index[0] < index[1] -> dispatched[p] = index[0] :: else fi
     }
  od
}

/* Every message that is sent on a connection follows the one before it: nothing is lost or
 * repeated on the way from one stream to the other (P4). */
inline send(x, at, moves) {
  assert(moves || at == NEXT(TARGET(x), sent[x]));
  assert(!moves || broken == MOVED_IN_RECOVERY || (at > sent[x] && NEXT(TARGET(x), sent[x]) > at));
  wire[CURRENT(x)]!at, sent[x], moves;
  sent[x] = at
}

#define CAN_SEND(x) (len(wire[CURRENT(x)]) < WIRE)

/* What a player does for one target. */
proctype Feeder(byte x) {
  byte at, its, end_at;
  bit flag, fixing;
end:
  do
  :: atomic {
       state[x] == S ->
       term[x]++;
       /* What was queued under the older term is dropped (P3). */
       if :: broken != TERMS_UNCHECKED -> drain(queue[x]) :: else fi;
       /* The connection before the last is gone by now. */
       drain(wire[CURRENT(x)]);
       term_of[CURRENT(x)] = term[x];
       at = index[TARGET(x)];
       state[x] = ASKED;
       fixing = 0
     }
  :: atomic {
       state[x] == ASKED ->
       if :: broken != INDEX_NOT_ASKED || sent[x] == 0 -> sent[x] = at :: else fi;
       recovered[x] = 0;
       if :: broken == QUEUED_IN_RECOVERY -> recovered[x] = dispatched[PLAYER(x)] :: else fi;
       at = 0;
       state[x] = RF
     }
  :: atomic {
       state[x] == RF && NEXT(TARGET(x), sent[x]) <= dispatched[PLAYER(x)] && CAN_SEND(x) ->
       send(x, NEXT(TARGET(x), sent[x]), 0)
     }
  :: atomic {
       state[x] == RF && broken == MOVED_IN_RECOVERY && TARGET(x) == 0 && CAN_SEND(x) &&
       dispatched[PLAYER(x)] % 2 == 0 && dispatched[PLAYER(x)] > sent[x] ->
       send(x, dispatched[PLAYER(x)], 1)
     }
  :: atomic {
       /* What is missing fits the queue: the end of recovery, under the dispatch lock. */
       state[x] == RF && dispatched[PLAYER(x)] <= sent[x] + QUEUE && !fixing ->
       end_at = dispatched[PLAYER(x)];
       if :: end_at < sent[x] -> end_at = sent[x] :: else fi;
       if
       :: broken == END_UNLOCKED -> fixing = 1
       :: else -> recovered[x] = end_at; state[x] = FC; end_at = 0
       fi
     }
  :: atomic {
       state[x] == RF && fixing ->
       if :: end_at < sent[x] -> end_at = sent[x] :: else fi;
       recovered[x] = end_at; state[x] = FC; fixing = 0; end_at = 0
     }
  :: atomic {
       state[x] == FC && NEXT(TARGET(x), sent[x]) <= recovered[x] && CAN_SEND(x) ->
       send(x, NEXT(TARGET(x), sent[x]), 0)
     }
  :: atomic { state[x] == FC && NEXT(TARGET(x), sent[x]) > recovered[x] -> state[x] = N }
  :: atomic {
       state[x] == N && len(queue[x]) > 0 && CAN_SEND(x) ->
       queue[x]?its, at, flag;
       send(x, at, flag);
       its = 0; at = 0; flag = 0
     }
  :: atomic {
       len(answers[x]) > 0 ->
       answers[x]?its, at, flag;
       if
       :: (its != term[x] && broken != TERMS_UNCHECKED) || state[x] == S
       :: (its == term[x] || broken == TERMS_UNCHECKED) && state[x] != S && flag ->
          /* A gap: another player, or an older connection, moved its index forward meanwhile. */
          assert(players == 2 || TARGET(x) == 0);
          cut(x)
       :: (its == term[x] || broken == TERMS_UNCHECKED) && state[x] != S && !flag ->
          if :: at > acknowledged[TARGET(x)] -> acknowledged[TARGET(x)] = at :: else fi;
          assert(acknowledged[TARGET(x)] <= index[TARGET(x)])
       fi;
       its = 0; at = 0; flag = 0
     }
  :: atomic {
       /* It waited long enough; the target does not know yet. */
       breaks < breaks_allowed && state[x] != S -> breaks++; cut(x); fixing = 0
     }
  od
}

inline answer(x, n, at, gap) {
  if
  :: term_of[ON(x, n)] == term[x] && state[x] != S -> answers[x]!term_of[ON(x, n)], at, gap
  :: else
  fi
}

#define CAN_ANSWER(x, n) (term_of[ON(x, n)] != term[x] || state[x] == S || len(answers[x]) < WIRE)

/* A target's end of one connection: the handler runs, then its effect and the index commit. */
proctype Server(byte x; bit n) {
  byte at, after;
  bit moves;
end:
  do
  :: atomic {
       at == 0 && len(wire[ON(x, n)]) > 0 && CAN_ANSWER(x, n) ->
       wire[ON(x, n)]?at, after, moves;
       if
       :: at <= index[TARGET(x)] -> answer(x, n, at, 0); at = 0; after = 0; moves = 0
       :: at > index[TARGET(x)] && after != index[TARGET(x)] ->
          answer(x, n, at, 1); at = 0; after = 0; moves = 0
       :: at > index[TARGET(x)] && after == index[TARGET(x)] ->
          if :: broken == ANSWERED_BEFORE_COMMIT -> answer(x, n, at, 0) :: else fi
       fi
     }
  :: atomic {
       at != 0 && CAN_ANSWER(x, n) ->
       if
       :: index[TARGET(x)] == after || broken == INDEX_UNCONDITIONAL ->
          /* In order, once, and all of them (P1). */
          assert(moves || at == NEXT(TARGET(x), index[TARGET(x)]));
          assert(!moves || (at > index[TARGET(x)] && NEXT(TARGET(x), index[TARGET(x)]) > at));
          index[TARGET(x)] = at;
          if :: broken != ANSWERED_BEFORE_COMMIT -> answer(x, n, at, 0) :: else fi
       :: index[TARGET(x)] != after && at <= index[TARGET(x)] && broken != INDEX_UNCONDITIONAL ->
          answer(x, n, at, 0)
       :: index[TARGET(x)] != after && at > index[TARGET(x)] && broken != INDEX_UNCONDITIONAL ->
          answer(x, n, at, 1)
       fi;
       at = 0; after = 0; moves = 0
     }
  :: atomic {
       /* It dies with what it carries, and what runs. */
       breaks < breaks_allowed && (at != 0 || len(wire[ON(x, n)]) > 0) ->
       breaks++;
       at = 0; after = 0; moves = 0;
       drain(wire[ON(x, n)]);
       if :: term_of[ON(x, n)] == term[x] -> cut(x) :: else fi
     }
  :: atomic {
       /* Given up by the player: the rest of it may not arrive. */
       len(wire[ON(x, n)]) > 0 && (term_of[ON(x, n)] != term[x] || state[x] == S) ->
       drain(wire[ON(x, n)])
     }
  od
}

init {
  byte x;
  d_step {
    c_code {
      now.broken = getenv("BROKEN") ? atoi(getenv("BROKEN")) : 0;
      now.breaks_allowed = getenv("BREAKS") ? atoi(getenv("BREAKS")) : 0;
      now.restarts_allowed = getenv("RESTARTS") ? atoi(getenv("RESTARTS")) : 0;
      now.players = getenv("PLAYERS") ? atoi(getenv("PLAYERS")) : 1;
      now.targets = getenv("TARGETS") ? atoi(getenv("TARGETS")) : 1;
      now.hangs = getenv("HANGS") ? atoi(getenv("HANGS")) : 0;
    };
    queue[0] = queue0; queue[1] = queue1; queue[2] = queue2; queue[3] = queue3;
    x = 0;
    do
    :: x < 4 -> state[x] = S; x++
    :: else -> break
    od;
    x = 0
  };
  atomic {
    run Player(0);
    run Feeder(1); run Server(1, 0); run Server(1, 1);
    if :: players == 2 -> run Player(1); run Feeder(3); run Server(3, 0); run Server(3, 1) :: else fi;
    if :: targets == 2 -> run Feeder(0) :: else fi;
    if :: targets == 2 && !hangs -> run Server(0, 0); run Server(0, 1) :: else fi
  }
}

ltl delivered { <> (ALL_DELIVERED) }
