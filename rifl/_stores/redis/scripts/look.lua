-- Look at what a client has; writes nothing. ARGV: 5 what at, 6.. as it says
local what = ARGV[5]

if what == 'client' then
  -- Now, bytes of memory, then the fields of the row, empty where there is none
  local bytes = 0
  for _, key in ipairs({ROW, SEQS, RUN, DONE, ENDS}) do
    local used = redis.pcall('MEMORY', 'USAGE', key)
    if type(used) == 'number' then bytes = bytes + used end
  end
  local row = redis.call('HMGET', ROW, 'store', 'first', 'acks', 'state', 'length', 'due', 'name')
  for at = 1, 7 do row[at] = row[at] or '' end
  return tell('ok', string.format('%.0f', now_ms()), string.format('%.0f', bytes), unpack(row))
end

-- A call: member, whether it runs, fingerprint, method, since when in ms, the attempt's
-- token and replica, bytes of the record. The replica of a recorded one: that may run it still
local function call_of(running_as, kept)
  if running_as then
    local attempt = cmsgpack.unpack(running_as)
    return '1', attempt.f, attempt.m, string.format('%.0f', attempt.c), attempt.t, attempt.o,
      '0'
  end
  local head, record = opened(kept)
  return '0', head.f, head.m, string.format('%.0f', head.c), '', head.o or '', tostring(#record)
end

if what == 'page' then
  -- 6 whether of what runs, 7 cursor, 8 about how many
  local runs = ARGV[6] == '1'
  local page = redis.call('HSCAN', runs and RUN or DONE, ARGV[7], 'COUNT', ARGV[8])
  local found, kept = {}, page[2]
  for at = 1, #kept, 2 do
    local value = kept[at + 1]
    table.insert(found, {kept[at], call_of(runs and value, value)})
  end
  return tell('ok', page[1], found)
end

-- call: 6 member, 7 whether its record is wanted, too
local attempt, kept = redis.call('HGET', RUN, ARGV[6]), redis.call('HGET', DONE, ARGV[6])
if not attempt and not kept then return tell('gone') end
local call = {ARGV[6], call_of(attempt, kept)}
if ARGV[7] ~= '1' or not kept then return tell('ok', call, '') end
local _, record = opened(kept)
return tell('ok', call, record)
