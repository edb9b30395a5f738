;;; qwen-companion-registry.el --- CLIs outside of this Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Each running Qwen Code is registered, wherever it was started.  The Python
;; process tells which there are.  A registered CLI has the keys of a session
;; that both can have, so that functions about sessions take it as well.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-untrusted)

(defvar qwen-companion-registry--clis nil
  "The registered CLIs, in the order of their starts.")

(defvar qwen-companion-registry-changed-hook nil
  "Hook run when the registered CLIs have changed.")

;;; Which there are

(defun qwen-companion-registry-on-registered (payload)
  "Handle the `registered' message PAYLOAD: CLIs have come, gone or changed."
  (let ((ids (append (mapcar #'qwen-companion-registered-id
                             (qwen-companion-registered-clis-clis payload))
                     (qwen-companion-registered-clis-gone payload))))
    (setq qwen-companion-registry--clis
          (sort (append (seq-remove (lambda (cli)
                                      (member (qwen-companion-registered-id cli) ids))
                                    qwen-companion-registry--clis)
                        (qwen-companion-registered-clis-clis payload))
                (lambda (a b)
                  (< (qwen-companion-registered-start a) (qwen-companion-registered-start b))))))
  (run-hooks 'qwen-companion-registry-changed-hook)
  nil)

(defun qwen-companion-registry-forget ()
  "Forget the registered CLIs; the next Python process reports them again."
  (setq qwen-companion-registry--clis nil)
  (run-hooks 'qwen-companion-registry-changed-hook))

(defun qwen-companion-registry-cli (id)
  "Return the registered CLI ID, or nil."
  (cl-find id qwen-companion-registry--clis
           :key #'qwen-companion-registered-id :test #'equal))

(defun qwen-companion-registry-of (session)
  "Return the registered CLI that SESSION is the connection of, or nil.
A registered CLI as SESSION is returned as it is now."
  (or (qwen-companion-registry-cli (qwen-companion-session-id session))
      (when-let* ((pid (qwen-companion-session-pid session)))
        (cl-find pid qwen-companion-registry--clis :key #'qwen-companion-registered-pid))))

(defun qwen-companion-registry-unconnected ()
  "Return the registered CLIs that are not connected to this Emacs."
  (let ((pids (mapcar #'qwen-companion-session-pid (qwen-companion-backend-sessions))))
    (seq-remove (lambda (cli) (memq (qwen-companion-registered-pid cli) pids))
                qwen-companion-registry--clis)))

(defun qwen-companion-registry-state (session)
  "Return the state of SESSION, a property list, as far as it is known.
What its hooks report goes before what it does with prompts of ours."
  (or (qwen-companion-session-state session)
      (when-let* ((cli (qwen-companion-registry-of session)))
        (qwen-companion-registered-state cli))))

(defun qwen-companion-registry-name (cli)
  "Return the name of the registered CLI, or its process, as text."
  (let ((name (qwen-companion-untrusted-line (qwen-companion-registered-name cli))))
    (if (string-blank-p name)
        (format "process %d" (qwen-companion-registered-pid cli))
      name)))

(defun qwen-companion-registry-kind (cli)
  "Return the kind of the registered CLI in words."
  (pcase (qwen-companion-registered-kind cli)
    ('tui "terminal")
    ('serve "daemon")
    (kind (symbol-name kind))))

(defun qwen-companion-registry-look ()
  "Have looked at which editors the registered CLIs are connected to."
  (qwen-companion-backend-call 'registry-look nil))

(defun qwen-companion-registry-end (cli)
  "End the process of the registered CLI, if it is still the one that it was."
  (qwen-companion-backend-call 'registry-end (list :cli (qwen-companion-registered-id cli))))

(provide 'qwen-companion-registry)
;;; qwen-companion-registry.el ends here
