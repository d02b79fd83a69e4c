// An auth policy in JavaScript: keys from the settings, each of a tenant, with limits.
//
// Settings: `keys`, a list of `{sha256, name, tenant, limits}`, where `limits` is an object by the names of `set-limit`;
// and `reuse`, whether an instance may serve several requests.
import { sha256 } from 'camshaft:host/crypto@1.0.0';

const SCHEMA = {
  type: 'object',
  properties: {
    keys: {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          sha256: { type: 'string', pattern: '^[0-9a-f]{64}$' },
          name: { type: 'string' },
          tenant: { type: 'string' },
          limits: { type: 'object', additionalProperties: { type: 'number' } },
        },
        required: ['sha256', 'name', 'tenant'],
      },
    },
    reuse: { type: 'boolean' },
  },
};
const NORMAL = 64;

let keys = new Map();

// A Rust `Err` is a thrown value. componentize-js passes on what a thrown object has as its `payload`.
function failure(payload) {
  return Object.assign(new Error('refused'), { payload });
}

export const plugin = {
  describe() {
    return { name: 'auth-keys-js', version: '0.1.0', settingsSchema: JSON.stringify(SCHEMA) };
  },

  configure(settings, cx) {
    const given = JSON.parse(settings);
    keys = new Map();
    for (const [index, key] of (given.keys ?? []).entries()) {
      if (!/^[0-9a-f]{64}$/.test(key.sha256) || !key.name || !key.tenant) {
        throw failure(`settings.keys[${index}] must have a name, a tenant, and 64 hexadecimal digits as sha256`);
      }
      keys.set(key.sha256, key);
    }
    if (given.reuse) {
      // Nothing is kept of a request.
      cx.reuse();
    }
  },
};

export const policy = {
  authenticate(request, cx) {
    const [value, another] = cx.header('authorization');
    if (value === undefined) {
      return { tag: 'next' };
    }
    const bearer = /^Bearer +(\S+)$/i.exec(new TextDecoder().decode(value));
    const key = another === undefined && bearer && keys.get(digest(bearer[1]));
    if (!key) {
      throw failure({ status: 401, code: 'invalid_api_key', message: 'the API key is wrong', param: undefined });
    }
    for (const [name, limit] of Object.entries(key.limits ?? {})) {
      // The host says in words what it does not take.
      cx.setLimit(name, limit);
    }
    const { name, tenant } = key;
    return { tag: 'allow', val: { name, tenant, priority: NORMAL, weight: 1 } };
  },
};

function digest(text) {
  const bytes = sha256(new TextEncoder().encode(text));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
