;;; qwen-companion-registry.el --- CLIs outside of this Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Each running Qwen Code is registered, wherever it was started.  The Python
;; process reports them.  A registered CLI has the keys that are common with a
;; session, so functions about sessions accept it too.
;;
;; A registered CLI accepts prompts over a socket from programs with a token.
;; Qwen Code makes the token once the user has agreed; the Python process keeps
;; it.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'qwen-companion-backend)
(require 'qwen-companion-header)
(require 'qwen-companion-messages)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defvar qwen-companion-registry--clis nil
  "The registered CLIs, in the order of their starts.")

(defvar qwen-companion-registry--by-key (make-hash-table :test #'equal)
  "The registered CLIs by their ids, and the first of each process by its number.")

(defvar qwen-companion-registry--controller 'none
  "Whether CLIs accept prompts from Emacs: `none', `valid' or `revoked'.")

(defvar qwen-companion-registry--watched t
  "Non-nil when the system reports changes to the Python process.")

(defvar qwen-companion-registry-changed-hook nil
  "Hook run when the registered CLIs have changed.")

;;; The registered CLIs

(defun qwen-companion-registry-on-registered (payload)
  "Handle the `registered' message PAYLOAD: CLIs were added, removed or changed."
  (dolist (id (append (mapcar #'qwen-companion-registered-id
                              (qwen-companion-registered-clis-clis payload))
                      (qwen-companion-registered-clis-gone payload)))
    (remhash id qwen-companion-registry--by-key))
  (qwen-companion-registry--set
   (sort (append (seq-filter (lambda (cli)
                               (qwen-companion-registry-cli (qwen-companion-registered-id cli)))
                             qwen-companion-registry--clis)
                 (qwen-companion-registered-clis-clis payload))
         (lambda (a b)
           (< (qwen-companion-registered-start a) (qwen-companion-registered-start b)))))
  (setq qwen-companion-registry--controller
        (qwen-companion-registered-clis-controller payload)
        qwen-companion-registry--watched (qwen-companion-registered-clis-told payload))
  (run-hooks 'qwen-companion-registry-changed-hook)
  nil)

(defun qwen-companion-registry--set (clis)
  "Replace the registered CLIs by CLIS, which are sorted by time of start."
  (setq qwen-companion-registry--clis clis)
  (clrhash qwen-companion-registry--by-key)
  (dolist (cli (reverse clis))
    (puthash (qwen-companion-registered-id cli) cli qwen-companion-registry--by-key)
    (puthash (qwen-companion-registered-pid cli) cli qwen-companion-registry--by-key)))

(defun qwen-companion-registry-forget ()
  "Forget the registered CLIs; the next Python process reports them again."
  (qwen-companion-registry--set nil)
  (run-hooks 'qwen-companion-registry-changed-hook))

(defun qwen-companion-registry-cli (id)
  "Return the registered CLI ID, or nil."
  (gethash id qwen-companion-registry--by-key))

(defun qwen-companion-registry-find (id)
  "Return the session or the registered CLI ID, or nil."
  (or (qwen-companion-backend-session id) (qwen-companion-registry-cli id)))

(defun qwen-companion-registry-of (session)
  "Return the registered CLI connected as SESSION, or nil.
If SESSION is a registered CLI, return its current state."
  (or (qwen-companion-registry-cli (qwen-companion-session-id session))
      (when-let* ((pid (qwen-companion-session-pid session)))
        (gethash pid qwen-companion-registry--by-key))))

(defun qwen-companion-registry-sessions ()
  "Return the sessions, followed by the registered CLIs without a session."
  (let* ((sessions (qwen-companion-backend-sessions))
         (pids (mapcar #'qwen-companion-session-pid sessions)))
    (append sessions
            (seq-remove (lambda (cli) (memq (qwen-companion-registered-pid cli) pids))
                        qwen-companion-registry--clis))))

(defun qwen-companion-registry-in-conversation (id)
  "Return the session or registered CLI with the open conversation ID, or nil.
Only CLIs of this machine are considered."
  (seq-find
   (lambda (session)
     (let ((cli (qwen-companion-registry-of session)))
       (and (not (qwen-companion-session-place session))
            (not (and cli (qwen-companion-registered-gone cli)))
            (equal id (or (qwen-companion-cli-state-conversation
                           (qwen-companion-session-state session))
                          (and cli (qwen-companion-registered-session cli)))))))
   (qwen-companion-registry-sessions)))

(defun qwen-companion-registry-state (session)
  "Return the known state of SESSION, a property list.
Reports of its hooks take precedence over its record."
  (or (qwen-companion-session-state session)
      (qwen-companion-registry-recorded session)))

(defun qwen-companion-registry-recorded (session)
  "Return the state of SESSION from the record of its conversation, or nil."
  (when-let* ((cli (qwen-companion-registry-of session)))
    (qwen-companion-registered-state cli)))

(defun qwen-companion-registry-name (cli)
  "Return the name of the registered CLI, or its process, as text."
  (let ((name (qwen-companion-untrusted-line (qwen-companion-registered-name cli))))
    (if (string-blank-p name)
        (format "process %d" (qwen-companion-registered-pid cli))
      name)))

(defun qwen-companion-registry-refresh (&optional shown)
  "Refresh the states of the registered CLIs and their editors.
If SHOWN is non-nil, which is for periodic calls, do so only if the system
does not report changes to the Python process."
  (unless (and shown qwen-companion-registry--watched)
    (qwen-companion-backend-call 'registry-look nil)))

(defvar qwen-companion-registry--ending nil
  "Functions to call when CLIs have ended: (ID . FUNCTION).")

(defun qwen-companion-registry-end (cli &optional function)
  "End the process of the registered CLI, if it is still the same one.
Then call FUNCTION with t, or with nil if it has not ended in time."
  (let ((id (qwen-companion-registered-id cli)))
    (setf (alist-get id qwen-companion-registry--ending nil nil #'equal) (or function #'ignore))
    (qwen-companion-backend-call 'registry-end (list :cli id))))

(defun qwen-companion-registry-check-movable (cli)
  "Signal a `user-error' if the conversation of the registered CLI cannot move."
  (cond
   ((qwen-companion-registered-problem cli)
    (user-error "%s: %s" (qwen-companion-registry-name cli)
                (qwen-companion-untrusted-text (qwen-companion-registered-problem cli))))
   ((eq 'serve (qwen-companion-registered-kind cli))
    (qwen-companion-header-error
      "The conversation is open in a daemon; end it there first (\\<qwen-companion-chats-mode-map>\\[qwen-companion-chat-sessions-finish] in M-x qwen-companion-chats), then M-x qwen-companion-resume continues it"))))

(defun qwen-companion-registry-when-ended (cli function)
  "Call FUNCTION with the registered CLI once it has ended; end it if necessary.
If two programs write one conversation, the last one to write wins, and
nothing prevents that."
  (let ((name (qwen-companion-registry-name cli)))
    (cond
     ((qwen-companion-registered-gone cli)
      (funcall function cli))
     ((yes-or-no-p (format "%s is still running.  Quit it there (unsent input is lost) and continue here? "
                           name))
      (qwen-companion-registry-end
       cli (lambda (ended)
             (if ended
                 (funcall function cli)
               (message "%s is still running, so its conversation stays there" name)))))
     (t (user-error "Left %s running" name)))))

(defun qwen-companion-registry-on-ended (payload)
  "Handle the `registry-ended' message PAYLOAD: a CLI has ended, or has not."
  (let ((id (qwen-companion-registry-ended-cli payload)))
    ;; A function may open a terminal, which a handler of a message must not.
    (run-at-time 0 nil #'qwen-companion-timers-call
                 (alist-get id qwen-companion-registry--ending #'ignore nil #'equal)
                 (qwen-companion-registry-ended-ended payload))
    (setf (alist-get id qwen-companion-registry--ending nil t #'equal) nil))
  nil)

;;; Prompts

(defconst qwen-companion-registry--outcomes
  '((sent . "sent, no receipt yet")
    (model . "at the model")
    (queued . "delivered; it runs after the current turn or question")
    (delivered . "delivered")
    (held . "held until you allow it by /peers in that CLI")
    (unanswered . "sent, but no receipt has come in 10 seconds; it may still arrive"))
  "Outcomes of prompts that were sent, in words: (STATUS . WORDS).")

(defconst qwen-companion-registry--failures
  '((refused . "its settings refuse prompts from other programs (agents.crossSessionInbound)")
    (denied . "it was declined there")
    (expired . "it was not allowed there in time, or the CLI ended first")
    (misaddressed . "it is in another conversation now")
    (dropped . "it refuses equal prompts in a row, and many at once")
    (closed . "it does not accept prompts from other programs (agents.crossSessionMessaging is off, or it is older than 0.24)")
    (gone . "it has ended")
    (too-long . "the prompt is longer than a million characters")
    (no-token . "its token no longer exists; send the prompt again to make one"))
  "Reasons why a prompt has not arrived: (STATUS . WORDS).")

(defconst qwen-companion-registry--remembered 1000
  "Most prompts that are remembered for late receipts.")

(defvar qwen-companion-registry--requests 0
  "Number of the last prompt that was sent.")

(defvar qwen-companion-registry--sent nil
  "The last prompts that were sent, newest first.
Each is (REQUEST CLI NAME ROOT TEXT . FAILED), with the ids of the request
and the CLI; FAILED is non-nil if it is known that it has not arrived.")

(defvar qwen-companion-registry-return-function (lambda (&rest _) "")
  "Function called to restore a prompt that has not arrived.
Its arguments are the root, the text and the id of the CLI.  The id is nil
if the prompt has arrived late after all.  It returns a sentence to show.")

(defun qwen-companion-registry-failed-p (cli)
  "Return non-nil when the registered CLI has not confirmed the last prompt."
  (nthcdr 5 (cl-find (qwen-companion-registered-id cli) qwen-companion-registry--sent
                     :key #'cadr :test #'equal)))

(defun qwen-companion-registry-refusal (cli)
  "Return, as text, why the registered CLI accepts no prompt; nil if it does."
  (let ((name (qwen-companion-registry-name cli))
        (problem (qwen-companion-registered-problem cli)))
    (cond
     ((qwen-companion-registered-gone cli)
      (format "%s has ended" name))
     ((eq 'serve (qwen-companion-registered-kind cli))
      (format "%s runs in a daemon; send the prompt in a chat (M-x qwen-companion-chats lists them)"
              name))
     ((not (qwen-companion-registered-listens cli))
      (format "%s: %s" name (if problem
                                (qwen-companion-untrusted-text problem)
                              (alist-get 'closed qwen-companion-registry--failures)))))))

(defun qwen-companion-registry-open-p (cli)
  "Return non-nil if the registered CLI gets a prompt without a question first."
  (and (eq 'valid qwen-companion-registry--controller)
       (not (qwen-companion-registry-refusal cli))))

(defun qwen-companion-registry-send (cli root text)
  "Send the prompt TEXT about ROOT to the registered CLI over its socket.
If there is no token for that, offer to make one.  Return the outcome so
far, as text for the echo area; a later message reports the receipt.
Signal a `user-error' if TEXT cannot be sent."
  (let ((name (qwen-companion-registry-name cli))
        (refusal (qwen-companion-registry-refusal cli)))
    (cond
     (refusal
      (user-error "%s" refusal))
     ((string-prefix-p "/" (string-trim-left text))
      (user-error "A slash command would reach the model of %s as text; type it in its terminal"
                  name))
     ((not (or (eq 'valid qwen-companion-registry--controller)
               (yes-or-no-p (qwen-companion-registry--question))))
      (user-error "Not sent: without a token, CLIs outside of Emacs accept no prompts from it")))
    (let ((id (cl-incf qwen-companion-registry--requests)))
      (setq qwen-companion-registry--sent
            (seq-take (cons (list id (qwen-companion-registered-id cli) name root text)
                            qwen-companion-registry--sent)
                      qwen-companion-registry--remembered))
      (qwen-companion-backend-call
       'registry-prompt
       (append (list :id id
                     :cli (qwen-companion-registered-id cli)
                     :session (qwen-companion-registered-session cli)
                     :program (unless (eq 'valid qwen-companion-registry--controller)
                                (qwen-companion-terminal-program)))
               (qwen-companion-spool-pack text)))
      (format "Sending to %s..." name))))

(defun qwen-companion-registry--question ()
  "Return the text of the question whether to make a token."
  (concat (when (eq 'revoked qwen-companion-registry--controller)
            "You have revoked the token of Emacs.  ")
          "Let Emacs send prompts to all your Qwen Code processes on this machine?  "
          "They act on prompts in their own approval modes.  "
          "`qwen sessions controllers add' makes a token for this, "
          "`qwen sessions controllers remove' revokes it.  "))

(defun qwen-companion-registry-on-receipt (payload)
  "Handle the `registry-receipt' message PAYLOAD: show the outcome of a prompt.
Pass a prompt that has not arrived to
`qwen-companion-registry-return-function'."
  (when-let* ((prompt (assq (qwen-companion-registry-receipt-id payload)
                            qwen-companion-registry--sent)))
    (pcase-let* ((`(,_ ,id ,name ,root ,text . ,failed) prompt)
                 (status (qwen-companion-registry-receipt-status payload))
                 (words (alist-get status qwen-companion-registry--outcomes)))
      (setf (nthcdr 5 prompt) (or (not words) (eq status 'unanswered)))
      (message
       "%s"
       (concat
        (if words
            (format "%s: %s" name words)
          (format "Not sent to %s: %s" name
                  (or (alist-get status qwen-companion-registry--failures)
                      (qwen-companion-untrusted-text
                       (or (qwen-companion-registry-receipt-reason payload) "it failed")))))
        ;; A late one may have been returned before.
        (when (or failed (nthcdr 5 prompt))
          (funcall qwen-companion-registry-return-function root text
                   (when (nthcdr 5 prompt) id)))))))
  nil)

(provide 'qwen-companion-registry)
;;; qwen-companion-registry.el ends here
