-- Appends events of a log that is written in one gateway. KEYS: what is known of the log; its events. ARGV: tenant;
-- gateway; milliseconds until it goes, if nothing more comes; the oldest number that its gateway still has; how it ended,
-- or nothing; whether it goes on in its gateway all the same; the number of the first event that follows, 0 where the log
-- begins; which piece of it follows, where that is all, and nothing where whole events do; how many bytes of it are behind
-- that piece; the events. What is there already is left out, so that a call may be made again. Gives the last number that
-- is there, and how many pieces of the next: less than was given where some before are missing; -1 where nobody wants the
-- log any more, or another gateway has begun it anew.
--
-- The entry of a piece has the number of its event and its own, and is called `p` where more belong to the event, with how
-- many bytes those have, and `e` where it is the last.
local first_kept, number = tonumber(ARGV[4]), tonumber(ARGV[7])
local about = redis.call('HMGET', KEYS[1], 'gone', 'owner')
if about[1] then return { -1, 0 } end
if number == 0 then
  -- What was written under this name before was given up.
  redis.call('DEL', KEYS[1], KEYS[2])
elseif about[2] and about[2] ~= ARGV[2] then
  return { -1, 0 }
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local last, pieces = 0, 0
if newest then
  local its, piece = string.match(newest[1], '^(%d+)-(%d+)')
  last = tonumber(its)
  if newest[2][1] == 'p' then last, pieces = last - 1, tonumber(piece) + 1 end
end
if #ARGV > 9 and number > last + 1 then
  if number > first_kept then return { last, pieces } end
  redis.call('DEL', KEYS[2])
  last, pieces = number - 1, 0
end
redis.call('HSET', KEYS[1], 'tenant', ARGV[1], 'owner', ARGV[2])
if ARGV[8] ~= '' then
  if number == last + 1 and tonumber(ARGV[8]) == pieces then
    local id = number .. '-' .. ARGV[8]
    if ARGV[9] == '0' then
      redis.call('XADD', KEYS[2], id, 'e', ARGV[10])
      last, pieces = number, 0
    else
      redis.call('XADD', KEYS[2], id, 'p', ARGV[10], 'behind', ARGV[9])
      pieces = pieces + 1
    end
  end
else
  for i = 10, #ARGV do
    if number > last then
      redis.call('XADD', KEYS[2], number .. '-0', 'e', ARGV[i])
      last, pieces = number, 0
    end
    number = number + 1
  end
end
if first_kept > 1 then redis.call('XTRIM', KEYS[2], 'MINID', '~', first_kept .. '-0') end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'end', ARGV[5], 'goes_on', ARGV[6]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return { last, pieces }
