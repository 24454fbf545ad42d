-- What scripts share that a call's arrival, its answer, or a renewal brings acknowledgements to.

local function differ(one, other) return one ~= '' and other ~= '' and one ~= other end

local function forget(from, to)
  for _, known in ipairs(redis.call('ZRANGEBYLEX', SEQS, '[s' .. from, '(s' .. to)) do
    local attempt = running(known)
    if attempt then
      ended(known, attempt)
      if attempt.k == 'plain' then given_up(known, attempt) end
    end
    redis.call('HDEL', DONE, known)
    redis.call('ZREM', SEQS, known)
  end
end

-- Unites two lists of ranges, leaving out what lies below first.
local function united(one, other, first)
  local all = {}
  for _, list in ipairs({one, other}) do
    for at = 1, #list, 32 do
      local to = string.sub(list, at + 16, at + 31)
      if to > first then table.insert(all, {string.sub(list, at, at + 15), to}) end
    end
  end
  table.sort(all, function(a, b) return a[1] < b[1] end)
  local merged = {}
  for _, range in ipairs(all) do
    local last = merged[#merged]
    if last and range[1] <= last[2] then
      if range[2] > last[2] then last[2] = range[2] end
    else
      table.insert(merged, range)
    end
  end
  local parts = {}
  for _, range in ipairs(merged) do table.insert(parts, range[1] .. range[2]) end
  return table.concat(parts), #merged
end

-- Acknowledgements only move forward; what they free goes in this very step.
local function acknowledge(old_first, old_ranges, first, ranges)
  if old_first and first < old_first then first = old_first end
  if first ~= (old_first or '0000000000000001') then
    forget(old_first or '0000000000000001', first)
    redis.call('HSET', ROW, 'first', first)
  end
  if ranges == '' and old_ranges == '' then return end
  local new_ranges, count = united(old_ranges, ranges, first)
  -- Beyond the bound the records stay: then nothing may be called acknowledged.
  if count > MAX_RANGES then return end
  if new_ranges ~= old_ranges then
    for at = 1, #ranges, 32 do
      forget(string.sub(ranges, at, at + 15), string.sub(ranges, at + 16, at + 31))
    end
    if new_ranges == '' then
      redis.call('HDEL', ROW, 'acks')
    else
      redis.call('HSET', ROW, 'acks', new_ranges)
    end
  end
end
