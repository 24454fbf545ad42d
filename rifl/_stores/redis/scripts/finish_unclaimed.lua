-- Record a call of an idempotent method that nobody claimed, where no record stands: what ends
-- its run (DESIGN §4, step 6).
--
-- ARGV: 5 member, 6 first incomplete, 7 completed ranges, 8 fingerprint, 9 record, 10 window,
-- 11 method, 12 whether the record says that the outcome is not known
local member, fingerprint, record = ARGV[5], ARGV[8], ARGV[9]
if went_backwards() then return {'backwards', '0'} end

local kept = redis.call('HGET', DONE, member)
if kept then
  local head, standing = opened(kept)
  -- Another payload under the same identity is refused by a claim, too.
  if differ(fingerprint, head.f) then return tell('fenced') end
  if standing == record then return tell('done') end
  return tell('stands', standing)
end
if redis.call('HEXISTS', RUN, member) == 1 then return tell('fenced') end
local row = redis.call('HMGET', ROW, 'store', 'first', 'acks', 'state', 'length')
-- Sessions have keys only.
if not row[1] or row[4] then return tell('gone') end
if is_stale(member, row[2], row[3]) then return tell('acknowledged') end
renew(row[5])
acknowledge(row[2], row[3] or '', ARGV[6], ARGV[7])
if redis.call('ZCARD', SEQS) >= tonumber(ARGV[10]) then return reply('fenced') end
redis.call('ZADD', SEQS, 0, member)
local run = {m = ARGV[11], c = now_ms()}
complete(member, run, fingerprint, record)
if ARGV[12] == '1' then remember(member, run) end
return reply('done')
