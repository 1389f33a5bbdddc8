-- Lets a request in where all its subjects have room. KEYS: for each subject its meters and its leases. ARGV: tokens, the
-- request's name, microseconds of a lease; then for each subject requests and tokens a minute and requests at once, 0
-- for no limit. Gives 1 or 0, then for each subject: requests used, microseconds to wait (-1: for ever), microseconds
-- until all leaked away; the same of tokens; requests that run; the change that charged the tokens.
local wanted, name, lease = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local function wait(level, amount, rate)
  if rate == 0 then return 0 end
  if amount > rate then return -1 end
  return math.max(0, math.ceil((level + amount * UNIT - rate * UNIT) / rate))
end

local function drained(level, rate)
  if rate == 0 then return 0 end
  return math.ceil(level / rate)
end

local subjects, admitted = {}, 1
for i = 1, #KEYS / 2 do
  local s = { meters = KEYS[2 * i - 1], leases = KEYS[2 * i], running = 0, charged = 0 }
  s.requests, s.tokens, s.most = tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  s.meter = load(s.meters, s.requests, s.tokens)
  s.changed = adopt(s.meter, s.requests, s.tokens)
  if s.most > 0 then
    redis.call('ZREMRANGEBYSCORE', s.leases, '-inf', now)
    s.running = redis.call('ZCARD', s.leases)
  end
  s.wait_requests = wait(s.meter[2], 1, s.requests)
  s.wait_tokens = wait(s.meter[3], wanted, s.tokens)
  if s.wait_requests ~= 0 or s.wait_tokens ~= 0 or (s.most > 0 and s.running >= s.most) then admitted = 0 end
  subjects[i] = s
end

local reply = { admitted }
for _, s in ipairs(subjects) do
  if admitted == 1 then
    if s.requests > 0 then s.meter[2] = s.meter[2] + UNIT end
    if s.tokens > 0 then
      s.charged = change(s.meter)
      s.meter[3] = s.meter[3] + wanted * UNIT
      s.meter[6] = s.meter[6] + 1
    end
    save(s.meters, s.meter)
    if s.most > 0 then
      redis.call('ZADD', s.leases, now + lease, name)
      redis.call('PEXPIRE', s.leases, math.ceil(lease / 1000))
    end
  elseif s.changed then
    save(s.meters, s.meter)
  end
  for _, number in ipairs({
    math.ceil(s.meter[2] / UNIT), s.wait_requests, drained(s.meter[2], s.requests),
    math.ceil(s.meter[3] / UNIT), s.wait_tokens, drained(s.meter[3], s.tokens),
    s.running, s.charged,
  }) do
    reply[#reply + 1] = number
  end
end
return reply
