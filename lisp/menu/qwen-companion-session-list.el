;;; qwen-companion-session-list.el --- List of CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A table of the connected CLIs with their activities, followed by the user's
;; other Qwen Codes on this machine; commands to go to one, and to the next
;; that waits for the user.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-ask)
(require 'qwen-companion-backend)
(require 'qwen-companion-bring-home)
(require 'qwen-companion-journal)
(require 'qwen-companion-layer)
(require 'qwen-companion-list)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-programs)
(require 'qwen-companion-proposal)
(require 'qwen-companion-registry)
(require 'qwen-companion-review)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-session-list--delay 0.1
  "Seconds in which changes are collected before a visible list is updated.")

(defconst qwen-companion-session-list--quiet 10
  "Seconds of a tool call after which a CLI without hooks probably asks.")

;;; Columns

(defun qwen-companion-session-list--proposals (session)
  "Return the open proposals of SESSION, oldest first."
  (seq-filter (lambda (proposal)
                (equal (qwen-companion-session-id session)
                       (qwen-companion-proposal-session proposal)))
              (qwen-companion-proposals)))

(defun qwen-companion-session-list-activity (session)
  "Return the activity of SESSION, a symbol.
One of `asking', `reviewing' (its proposal is open), `working', `done',
`ready' (no prompt yet), `cancelled', `failed' and `retrying' (its request
has failed).  `quiet' means that a tool without hooks has run long, or that
the CLI probably asks; `connected', that it does not report its activity."
  (let* ((state (qwen-companion-registry-state session))
         (recorded (qwen-companion-registry-recorded session))
         (activity (qwen-companion-cli-state-activity state)))
    ;; For an edit that its terminal asks about too, show the review.
    (cond ((qwen-companion-session-list--proposals session) 'reviewing)
          ((and (eq activity 'working)
                (eq 'retrying (qwen-companion-cli-state-activity recorded)))
           'retrying)
          ((and (eq activity 'working)
                (< (or (qwen-companion-cli-state-tool-since state) most-positive-fixnum)
                   (* 1000 (- (float-time) qwen-companion-session-list--quiet))))
           'quiet)
          ((eq activity 'idle)
           ;; For a prompt of another program, only the end is reported.
           (if (or (qwen-companion-cli-state-prompt state)
                   (qwen-companion-cli-state-tokens state))
               'done
             'ready))
          (activity)
          (t 'connected))))

(defun qwen-companion-session-list--waiting-p (session)
  "Return non-nil when SESSION waits for the user."
  (and (memq (qwen-companion-session-list-activity session) '(asking reviewing failed quiet)) t))

(defun qwen-companion-session-list--waiting-first (sessions)
  "Return SESSIONS with those first that wait for the user, longest first."
  (let ((groups (seq-group-by #'qwen-companion-session-list--waiting-p sessions)))
    (append (seq-sort-by #'qwen-companion-session-list--since #'< (alist-get t groups))
            (alist-get nil groups))))

(defun qwen-companion-session-list--project (session)
  "Return the project of SESSION, a short name."
  (let ((directory (qwen-companion-session-directory session)))
    (cond ((null directory) "")
          ((qwen-companion-places-remote-p directory)
           (qwen-companion-places-abbreviate directory))
          (t (file-name-nondirectory
              (directory-file-name (or (qwen-companion-roots-of directory) directory)))))))

(defun qwen-companion-session-list--buffer (session)
  "Return the buffer of the terminal of SESSION, or nil."
  (and session (qwen-companion-terminal-session-buffer session)))

(defun qwen-companion-session-list--terminal (session)
  "Return where the terminal of SESSION is, as text."
  (let ((buffer (qwen-companion-terminal-session-buffer session))
        (kind (qwen-companion-registered-kind session)))
    (cond (buffer (buffer-name buffer))
          (kind (format "%s %s" (pcase kind ('tui "terminal") ('serve "daemon") (_ kind))
                        (qwen-companion-registry-name session)))
          ((or (qwen-companion-session-pid session) (qwen-companion-session-place session))
           "outside Emacs")
          (t ""))))

(defun qwen-companion-session-list--last (session)
  "Return the question of SESSION, the end of its last answer or its prompt.
If none is known, return the reason.  For a registered CLI, add its
directory and its editor."
  (let* ((state (qwen-companion-registry-state session))
         (editor (qwen-companion-registered-editor session))
         (last (or (qwen-companion-registered-problem session)
                   (qwen-companion-cli-state-question state)
                   (qwen-companion-session-list--failure session)
                   (qwen-companion-cli-state-said state)
                   (qwen-companion-cli-state-prompt state)
                   (qwen-companion-session-no-hooks session)))
         ;; A record is untrusted, and may have a remote name.
         (file-name-handler-alist nil)
         (directory (and (qwen-companion-registered-kind session)
                         (qwen-companion-registered-directory session))))
    (string-join (delq nil (list (and last (qwen-companion-untrusted-cut last))
                                 (and directory (abbreviate-file-name directory))
                                 (and editor (concat "connected to " editor))))
                 ", ")))

(defun qwen-companion-session-list--failure (session)
  "Return why the last request of SESSION has failed, or nil."
  (or (qwen-companion-cli-state-failure (qwen-companion-registry-state session))
      (qwen-companion-cli-state-failure (qwen-companion-registry-recorded session))))

(defun qwen-companion-session-list--turns (session)
  "Return each turn of SESSION, newest first."
  (seq-filter (lambda (turn)
                (equal (qwen-companion-session-id session) (qwen-companion-turn-cli turn)))
              (qwen-companion-journal-turns)))

(defun qwen-companion-session-list--files (session)
  "Return how many files SESSION has changed, as text; \"\" for none."
  (let ((paths (delete-dups
                (mapcan (lambda (turn)
                          (mapcar #'qwen-companion-changed-file-path
                                  (qwen-companion-turn-files turn)))
                        (qwen-companion-session-list--turns session)))))
    (if paths (number-to-string (length paths)) "")))

(defun qwen-companion-session-list--usage (session)
  "Return the usage of the conversation of SESSION, by model, a list.
For a chat, it covers the turns in the journal."
  (or (qwen-companion-session-usage session)
      (when-let* ((chat (qwen-companion-registered-chat session)))
        (cl-loop for turn in (qwen-companion-journal-turns)
                 when (equal chat (qwen-companion-turn-conversation turn))
                 append (qwen-companion-turn-usage turn)))))

(defun qwen-companion-session-list--used (session)
  "Return how many tokens the conversation of SESSION has used, as text.
It is \"\" if unknown; its tooltip has the tokens by model."
  (if-let* ((usage (qwen-companion-session-list--usage session)))
      (propertize (qwen-companion-layer-number (qwen-companion-layer-tokens usage))
                  'help-echo (qwen-companion-layer-usage usage))
    (if-let* ((tokens (qwen-companion-cli-state-tokens (qwen-companion-registry-state session))))
        (propertize (qwen-companion-layer-number tokens) 'help-echo "In the last request")
      "")))

(defun qwen-companion-session-list--more-tokens-p (a b)
  "Return non-nil when entry A's CLI has used more tokens than entry B's."
  (cl-flet ((used (entry)
              (qwen-companion-layer-tokens
               (qwen-companion-session-list--usage
                (qwen-companion-registry-find (car entry))))))
    (> (used a) (used b))))

(defun qwen-companion-session-list--entry (session)
  "Return the entry of SESSION, a session or a registered CLI, in the list."
  (let ((since (qwen-companion-session-list--since session)))
    (list (qwen-companion-session-id session)
          (vconcat
           (mapcar #'qwen-companion-untrusted-text
                   (list (string-trim
                          (format "%s %s"
                                  (or (qwen-companion-session-client session) "Qwen Code")
                                  (qwen-companion-session-version session)))
                         (qwen-companion-session-list--project session)))
           (list (qwen-companion-session-list--state session)
                 (if (zerop since)
                     ""
                   (qwen-companion-layer-duration (- (float-time) (/ since 1000.0))))
                 (qwen-companion-session-list--files session)
                 (qwen-companion-session-list--used session))
           (mapcar #'qwen-companion-untrusted-text
                   (list (qwen-companion-session-list--terminal session)
                         (qwen-companion-session-list--last session)))))))

(defun qwen-companion-session-list--state (session)
  "Return the state of SESSION, its activity or how it is connected, as text."
  (let ((activity (qwen-companion-session-list-activity session))
        (kind (qwen-companion-registered-kind session)))
    (cond ((qwen-companion-registered-gone session) "gone")
          ((and kind (not (qwen-companion-registered-directory session)))
           (propertize "unusable" 'face 'warning))
          ((not (eq activity 'connected))
           (let ((done (qwen-companion-layer-todo-count session)))
             (propertize
              (pcase activity
                ('failed (format "failed: %s" (qwen-companion-untrusted-line
                                               (or (qwen-companion-session-list--failure session)
                                                   "unknown error"))))
                ('quiet "probably asks")
                (_ (concat (symbol-name activity) (and done " ") done)))
              'face (and (memq activity '(asking reviewing failed retrying quiet)) 'warning))))
          ((qwen-companion-registered-editor session) "elsewhere")
          (kind "no editor")
          (t "connected"))))

(defun qwen-companion-session-list--since (session)
  "Return the time SESSION entered its state, in ms since the epoch; 0 if unknown.
For a registered CLI that is not connected, return its start."
  (let ((state (qwen-companion-registry-state session)))
    (or (pcase (qwen-companion-session-list-activity session)
          ('quiet (qwen-companion-cli-state-tool-since state))
          ('retrying (qwen-companion-cli-state-since (qwen-companion-registry-recorded session))))
        (qwen-companion-cli-state-since state)
        (qwen-companion-registered-start session)
        0)))

(defun qwen-companion-session-list--shorter-p (a b)
  "Return non-nil when the state of entry A is newer than that of entry B."
  (cl-flet ((since (entry)
              (qwen-companion-session-list--since
               (qwen-companion-registry-find (car entry)))))
    (> (since a) (since b))))

;;; The list

(defun qwen-companion-session-list--rows ()
  "Return the CLIs with those first that wait for the user."
  (qwen-companion-session-list--waiting-first (qwen-companion-registry-sessions)))

(defun qwen-companion-session-list--remark ()
  "Return how many CLIs wait for the user, or nil."
  (let ((waiting (cl-count-if #'qwen-companion-session-list--waiting-p
                              (qwen-companion-registry-sessions))))
    (when (> waiting 0)
      (propertize (format "%d wait%s for you" waiting (if (= waiting 1) "s" ""))
                  'face 'warning))))

(defun qwen-companion-session-list--empty ()
  "Return why the list has no CLI."
  (if (eq 'ready (qwen-companion-state))
      "No CLI is connected"
    "The companion is not running"))

(defun qwen-companion-session-list-summary ()
  "Return how many CLIs are connected and how many proposals wait, in words."
  (format "%s, %s"
          (pcase (length (qwen-companion-backend-sessions))
            (0 "No CLI is connected")
            (1 "1 CLI is connected")
            (count (format "%d CLIs are connected" count)))
          (pcase (length (qwen-companion-proposals))
            (0 "no open proposals")
            (1 "1 open proposal")
            (count (format "%d open proposals" count)))))

(defun qwen-companion-session-list-refresh (&rest _)
  "Update the list soon if it is visible; point stays on its CLI."
  (qwen-companion-list-with-buffer 'qwen-companion-sessions-mode
    (qwen-companion-timers-update-soon qwen-companion-session-list--delay)))

(defun qwen-companion-session-list--read (prompt)
  "Return the session at point in the list; elsewhere ask for one with PROMPT."
  (if (derived-mode-p 'qwen-companion-sessions-mode)
      (qwen-companion-list-at-point)
    (qwen-companion-layer-read-session
     prompt (or (qwen-companion-registry-sessions)
                (user-error "No CLI is running")))))

(defun qwen-companion-session-list-visit (session)
  "Go to the terminal of SESSION, the CLI at point."
  (interactive (list (qwen-companion-session-list--read "Go to the terminal of: "))
               qwen-companion-sessions-mode)
  (pop-to-buffer
   (or (qwen-companion-terminal-session-buffer session)
       (user-error "This CLI is in a terminal outside of Emacs, process %s"
                   (or (qwen-companion-backend-process-text session) "unknown")))))

(defun qwen-companion-session-list-review (session)
  "Go to the oldest review of SESSION, the CLI at point."
  (interactive (list (qwen-companion-session-list--read "Go to the review of: "))
               qwen-companion-sessions-mode)
  (qwen-companion-diff-open
   (or (car (qwen-companion-session-list--proposals session))
       (user-error "Nothing to review: this CLI has no open proposals"))))

(defun qwen-companion-session-list-prompt (session)
  "Write a prompt for SESSION, the CLI at point."
  (interactive (list (qwen-companion-session-list--read "Write a prompt for: "))
               qwen-companion-sessions-mode)
  (qwen-companion-ask-cli session))

(declare-function qwen-companion-changes-of-session "qwen-companion-changes" (turn))

(defun qwen-companion-session-list-changes (session)
  "Show each change of SESSION, the CLI at point, in its conversation."
  (interactive (list (qwen-companion-session-list--read "Show the changes of: "))
               qwen-companion-sessions-mode)
  (require 'qwen-companion-changes)
  (qwen-companion-changes-of-session
   (or (car (qwen-companion-session-list--turns session))
       (user-error "No recorded changes by this CLI"))))

(defun qwen-companion-session-list-end (session)
  "End SESSION, the CLI at point, after a question."
  (interactive (list (qwen-companion-session-list--read "End: "))
               qwen-companion-sessions-mode)
  (let* ((id (qwen-companion-session-id session))
         (place (qwen-companion-session-place session))
         (pid (or (qwen-companion-session-pid session)
                  (and place (car (qwen-companion-session-ancestors session)))
                  (user-error "Cannot find the process of this CLI; end it in its terminal"))))
    (when (qwen-companion-registered-gone session)
      (user-error "That CLI has already ended"))
    (when (yes-or-no-p
           (format "End %s, process %s%s? "
                   (if (eq 'serve (qwen-companion-registered-kind session))
                       "the daemon with all its conversations"
                     (qwen-companion-untrusted-text
                      (or (qwen-companion-session-client session) "Qwen Code")))
                   (qwen-companion-backend-process-text session)
                   (if (eq 'working (qwen-companion-session-list-activity session))
                       ", in the middle of its work"
                     "")))
      (cond
       ((not (or (qwen-companion-backend-session id) (qwen-companion-registry-cli id)))
        (user-error "That CLI has already ended"))
       ;; While it is connected, the number is its process id.
       (place
        (unless (eql 0 (qwen-companion-programs-call-there place "kill" (number-to-string pid)))
          (user-error "Could not end this CLI; end it in its terminal")))
       ((qwen-companion-backend-session id)
        (signal-process pid 'SIGTERM))
       (t (qwen-companion-registry-end session))))))

(defun qwen-companion-session-list-bring-home (session)
  "Connect SESSION, the CLI at point, or continue its conversation here."
  (interactive (list (qwen-companion-session-list--read "Move to Emacs: "))
               qwen-companion-sessions-mode)
  (qwen-companion-bring-home session))

(defun qwen-companion-session-list--retry-p (session)
  "Return non-nil when the last request of SESSION has failed."
  (and session (memq (qwen-companion-session-list-activity session) '(failed retrying))))

(defun qwen-companion-session-list-retry (session)
  "Make SESSION, the CLI at point, repeat its failed request now.
Do so even if the CLI already waits to repeat it by itself."
  (interactive (list (qwen-companion-session-list--read "Send the failed request again of: "))
               qwen-companion-sessions-mode)
  (unless (qwen-companion-session-list--retry-p session)
    (user-error "No request of this CLI has failed"))
  (qwen-companion-terminal-retry
   (or (qwen-companion-terminal-session-buffer session)
       (user-error "This CLI is in a terminal outside of Emacs; Ctrl+Y there sends its request again"))))

(qwen-companion-list-define qwen-companion-sessions-mode "Sessions"
  "Major mode of the list of CLIs.
Info node `(qwen-companion)The list of CLIs' is about it."
  (:buffer "*qwen-companion sessions*"
   :thing "CLI"
   :columns [("CLI" 17 t) ("Project" 10 t) ("State" 18 t)
             ("Since" 6 qwen-companion-session-list--shorter-p)
             ("Files" 5 nil :right-align t)
             ("Tokens" 6 qwen-companion-session-list--more-tokens-p :right-align t)
             ("Terminal" 22 t) ("Last" 0 t)]
   :first-line 6
   :cut 1
   :rows #'qwen-companion-session-list--rows
   :entry #'qwen-companion-session-list--entry
   :find #'qwen-companion-registry-find
   :empty #'qwen-companion-session-list--empty
   :remark #'qwen-companion-session-list--remark
   :load (lambda (by-user) (qwen-companion-registry-refresh (not by-user)))
   :category 'qwen-companion-session
   :name #'qwen-companion-layer-name
   :period 5
   :hooks '((qwen-companion-proposal-changed-hook . qwen-companion-session-list-refresh)
            (qwen-companion-journal-changed-functions . qwen-companion-session-list-refresh)
            (qwen-companion-registry-changed-hook . qwen-companion-session-list-refresh))
   :set-up (lambda () (qwen-companion-journal-watch-while-live 'sessions)))
  ((terminal visit) qwen-companion-session-list-visit "Go to Its Terminal" "terminal"
   :if (qwen-companion-session-list--buffer (qwen-companion-list-row)) :embark t)
  (review qwen-companion-session-list-review "Go to Its Review"
   :if (qwen-companion-session-list--proposals (qwen-companion-list-row)) :embark t)
  (retry qwen-companion-session-list-retry "Send Its Failed Request Again"
   :if (qwen-companion-session-list--retry-p (qwen-companion-list-row)) :embark t)
  (prompt qwen-companion-session-list-prompt "Send It a Prompt"
   :if (qwen-companion-list-row) :embark t)
  (difference qwen-companion-session-list-changes "What It Has Changed" "changes"
   :if (qwen-companion-list-row) :embark t)
  (adopt qwen-companion-session-list-bring-home "Bring It Home"
   :if (let ((session (qwen-companion-list-row)))
         (and (qwen-companion-registry-of session)
              (not (qwen-companion-session-list--buffer session))))
   :embark t)
  (end qwen-companion-session-list-end "End It" "end"
   :if (qwen-companion-list-row) :embark t))

;;;###autoload
(defun qwen-companion-sessions ()
  "List the CLIs with their activities, the connected ones first.
The others are your Qwen Codes on this machine, connected to another
editor or to none.  The list updates itself.
\\<qwen-companion-sessions-mode-map>\\[qwen-companion-session-list-visit] goes to the terminal of the CLI at point,
\\[qwen-companion-session-list-review] to its review, \\[qwen-companion-session-list-end] ends it."
  (interactive)
  (qwen-companion-list-open 'qwen-companion-sessions-mode))

;;; Going to one

;; Loaded with the first chat.
(declare-function qwen-companion-chat-permissions-visit "qwen-companion-chat-permissions"
                  (&optional chat))
(declare-function qwen-companion-chat-permissions-waiting-chats
                  "qwen-companion-chat-permissions" ())

(defvar qwen-companion-session-list--last nil
  "Id of the session, or chat, to which `qwen-companion-next-waiting' went.")

(defun qwen-companion-session-list--waiting ()
  "Return the CLIs that wait for the user, longest first."
  (seq-take-while #'qwen-companion-session-list--waiting-p
                  (qwen-companion-session-list--rows)))

(defun qwen-companion-session-list-help (&rest _)
  "Return the CLIs that wait for the user, longest first, and the states of all.
Return nil if there are none.  For `help-echo'."
  (let ((text (concat (mapconcat #'qwen-companion-session-list--waiting-line
                                 (qwen-companion-session-list--waiting) "")
                      (qwen-companion-layer-help))))
    (unless (string-empty-p text)
      (string-trim-right text))))

(defun qwen-companion-session-list--waiting-line (session)
  "Return a line on SESSION, which waits for the user."
  (let ((since (qwen-companion-session-list--since session))
        (last (qwen-companion-session-list--last session)))
    (concat
     (format "%s in %s %s"
             (qwen-companion-layer-name session)
             (qwen-companion-untrusted-line (qwen-companion-session-list--project session))
             (qwen-companion-session-list--state session))
     (unless (zerop since)
       (format " since %s" (qwen-companion-layer-duration (- (float-time) (/ since 1000.0)))))
     (unless (string-empty-p last)
       (concat ": " (qwen-companion-untrusted-line last)))
     "\n")))

(defun qwen-companion-session-list-waiting ()
  "Return the CLIs and chats that wait for the user, CLIs the longest first.
Each is (ID . FUNCTION): the id of a session, or the buffer of a chat, and
a function that goes to its question or its review."
  (append
   (mapcar (lambda (session)
             (cons (qwen-companion-session-id session)
                   (lambda () (qwen-companion-session-list--go-to session))))
           (qwen-companion-session-list--waiting))
   (when (featurep 'qwen-companion-chat-permissions)
     (mapcar (lambda (chat)
               (cons chat
                   (lambda ()
                     (if-let* ((plan (car (qwen-companion-review-of-terminal chat))))
                         (qwen-companion-diff-open plan)
                       (qwen-companion-chat-permissions-visit chat)))))
             (qwen-companion-chat-permissions-waiting-chats)))))

(defun qwen-companion-session-list--go-to (session)
  "Go to the review of SESSION, which waits, to its terminal, or to its row."
  (cond ((car (qwen-companion-session-list--proposals session))
         (qwen-companion-diff-open (car (qwen-companion-session-list--proposals session))))
        ((qwen-companion-terminal-session-buffer session)
         (qwen-companion-session-list-visit session))
        (t
         (qwen-companion-sessions)
         (goto-char (point-min))
         (while (not (or (eobp) (equal (qwen-companion-session-id session)
                                       (tabulated-list-get-id))))
           (forward-line))
         (message "This CLI waits in a terminal outside of Emacs, process %s"
                  (or (qwen-companion-backend-process-text session) "unknown")))))

;;;###autoload
(defun qwen-companion-next-waiting ()
  "Go to the question or review of the next CLI or chat that waits for you.
Repeat it to go on to the one after it."
  (interactive)
  (let* ((waiting (qwen-companion-session-list-waiting))
         (next (or (cadr (cl-member qwen-companion-session-list--last waiting
                                    :key #'car :test #'equal))
                   (car waiting))))
    (cond (next
           (setq qwen-companion-session-list--last (car next))
           (funcall (cdr next)))
          ;; For instance of a CLI that has disconnected.
          ((qwen-companion-proposals) (qwen-companion-review))
          (t (user-error "Nothing is waiting for you")))))

(provide 'qwen-companion-session-list)
;;; qwen-companion-session-list.el ends here
