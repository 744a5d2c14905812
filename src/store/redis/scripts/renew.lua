-- Extends the leases that still hold to their full length from now. An ended one is never revived.
--
-- ARGV[2]  how many, their length if all have the same (else 0), the lengths if they differ
-- ARGV     the tokens
-- reply    a byte for each: 1 if it held
if stale then return pack('>dB', time, 1) end
local count, ttl, lengths = unpack('>dd', ARGV[2])

local head = pcall('HGET', key, 'h')
if type(head) == 'table' then return refused(head, key) end
local failure = open(head)
if failure then return failure end

failure = purge()
if failure then return failure end

local tokens = {spread(ARGV, 3, 2 + count)}
local scores
if ended > 0 and count > 0 then
  -- XX alone would revive those that have ended and are still there.
  scores = pcall('ZMSCORE', leases, spread(tokens))
  if scores.err then return refused(scores, leases) end
  for lease = 1, count do
    scores[lease] = scores[lease] and tonumber(scores[lease]) > now
  end
end

local added, size, highest = {'ZADD', leases, 'XX', 'CH'}, 4, now + ttl
local score = format('%.0f', highest)
for lease = 1, count do
  if not scores or scores[lease] then
    if ttl == 0 then
      local finish = now + unpack('>d', ARGV[2], lengths + 8 * (lease - 1))
      if finish > highest then highest = finish end
      score = format('%.0f', finish)
    end
    added[size + 1], added[size + 2], size = score, tokens[lease], size + 2
  end
end

local held = 0
if size > 4 then
  local done = write(added)
  if type(done) == 'table' then return refused(done, leases) end
  held = done
  -- Counted are those whose end changed. If some are short they ended, or were renewed in this very microsecond.
  if not scores and done < count then
    scores = pcall('ZMSCORE', leases, spread(tokens))
    if scores.err then return refused(scores, leases) end
    held = 0
    for lease = 1, count do
      if scores[lease] then held = held + 1 end
    end
  end
end

if held > 0 then
  keep(highest)
  keep(now + 3600000000)
  failure = keep_leases(highest)
end
if held > 0 or head and stepped then
  failure = failure or save(head, {false, false, false, false})
  if failure then return failure end
end

-- (A test's own commands go here.)
if not scores then return pack('>dB', time, 0) .. ('\1'):rep(count) end
local answer = {}
for lease = 1, count do
  answer[lease] = scores[lease] and '\1' or '\0'
end
return pack('>dB', time, 0) .. table.concat(answer)
