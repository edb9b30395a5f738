;;; qwen-companion-rewind.el --- Go back to before a prompt  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-rewind' rewinds a conversation and the files to before a
;; prompt.  The journal undoes each later turn of the conversation, newest
;; first, so edits of the user and of other agents stay.  Qwen Code's own
;; rewind would overwrite whole files.
;;
;; The conversation is rewound by `qwen serve'.  A chat does it at once, see
;; qwen-companion-chat-rewind.el; how a CLI in a terminal does, is in
;; qwen-companion-rewind-cli.el.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-changes-undo)
(require 'qwen-companion-completion)
(require 'qwen-companion-header)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-rewind-cli)
(require 'qwen-companion-terminal)
(require 'qwen-companion-undo)
(require 'qwen-companion-untrusted)

(defvar qwen-companion-rewind-conversation-functions nil
  "Abnormal hook to find the method to rewind a conversation.
Each function gets a `qwen-companion-rewind-target' and returns nil if it
does not know the conversation, else (WORDS . FUNCTION).  FUNCTION begins
to rewind it, or is nil if that is impossible.  WORDS are for the question
to the user: what happens to the conversation, or why it stays.  A
`user-error' means that nothing can be rewound now.")

(defvar qwen-companion-rewind-return-functions nil
  "Abnormal hook to open a copy of a rewound conversation.
Each function gets the name of a copy, as passed to
`qwen-companion-rewind-note', and returns non-nil if it has opened it.")

(defvar-local qwen-companion-rewind-target-function nil
  "Function that returns the `qwen-companion-rewind-target' at point.
It is called without arguments in the current buffer.  If there is no
target, it shows a message and returns nil.")

(defconst qwen-companion-rewind--patience 1
  "Seconds to wait for the end of a turn.")

;;; What is rewound

(defun qwen-companion-rewind--target-of (turn)
  "Return the target of TURN, one of an agent in the journal."
  (unless (and turn (memq (qwen-companion-turn-source turn) '(hooks chat)))
    (qwen-companion-header-error "Only a turn of Qwen Code can be rewound; \\[qwen-companion-changes-undo] undoes this one"))
  (make-qwen-companion-rewind-target
   :conversation (qwen-companion-turn-conversation turn)
   :session (qwen-companion-turn-session turn)
   :start (qwen-companion-turn-start turn)
   :prompt (qwen-companion-turn-prompt turn)
   :root (qwen-companion-turn-root turn)))

(defun qwen-companion-rewind--turns (target)
  "Return the list of each turn since TARGET in its conversation, newest first."
  (let ((start (- (qwen-companion-rewind-target-start target) qwen-companion-rewind-cli-start-tolerance)))
    (seq-filter (lambda (turn)
                  (and (equal (qwen-companion-rewind-target-conversation target)
                              (qwen-companion-turn-conversation turn))
                       (memq (qwen-companion-turn-source turn) '(hooks chat))
                       (not (qwen-companion-turn-rewound turn))
                       (>= (qwen-companion-turn-start turn) start)))
                (qwen-companion-journal-turns))))

(defun qwen-companion-rewind--read ()
  "Return the target at point, or read one.
If there is none, show a message and return nil."
  (if qwen-companion-rewind-target-function
      (funcall qwen-companion-rewind-target-function)
    (let* ((conversation (qwen-companion-terminal-conversation-here))
           (root (qwen-companion-terminal-here))
           (turns (seq-filter
                   (lambda (turn)
                     (and (memq (qwen-companion-turn-source turn) '(hooks chat))
                          (not (qwen-companion-turn-rewound turn))
                          (if conversation
                              (equal conversation (qwen-companion-turn-session turn))
                            (equal root (qwen-companion-turn-root turn)))))
                   (qwen-companion-journal-turns))))
      (if (null turns)
          (ignore (message "No recorded turn to rewind here"))
        (qwen-companion-rewind--target-of
         (qwen-companion-completion-read
          "Rewind to before: "
          (cl-loop for turn in turns
                   for number from 1
                   collect (cons (format "%d %s" number
                                         (qwen-companion-untrusted-line
                                          (qwen-companion-turn-prompt turn)))
                                 turn))
          'qwen-companion-turn
          (lambda (turn)
            (qwen-companion-changes-items-time (qwen-companion-turn-start turn)))))))))

;;; The command

(defun qwen-companion-rewind--part (prefix)
  "Return the part to rewind for the prefix argument PREFIX.
It is nil for all, `files' or `conversation'."
  (pcase prefix
    ('nil nil)
    ('(16) 'conversation)
    (_ 'files)))

;;;###autoload
(defun qwen-companion-rewind (&optional part)
  "Rewind the conversation and the files to before a prompt.
Use the prompt at point in the buffer of changes or a chat; in other
buffers, choose one of the terminal's or the project's turns.  Describe
the effect and ask before doing it.

The journal undoes the agent's changes, so your own edits stay, and
conflicts are shown as for an undo.  The prompt returns for editing: to
the input of a chat, or to a prompt buffer for a CLI in a terminal.  That
CLI is restarted in the same window.

PART is `files' or `conversation' to rewind only that.  Interactively,
one \\[universal-argument] means the files only, two the conversation only."
  (interactive (list (qwen-companion-rewind--part current-prefix-arg)))
  (qwen-companion-journal-call-with-turns
   (lambda ()
     (when-let* ((target (qwen-companion-rewind--read)))
       (qwen-companion-rewind--rewind target part)))))

(defun qwen-companion-rewind--turn-at-point ()
  "Return the turn at point in this list, or signal a `user-error'."
  (let ((group (qwen-companion-changes-items-group-at-point)))
    (or (qwen-companion-journal-turn (qwen-companion-changes-items-group-turn group))
        (qwen-companion-header-error "Not on a turn; \\[qwen-companion-changes-show-turns] shows the turns"))))

(defun qwen-companion-rewind-target-at-point ()
  "Return the `qwen-companion-rewind-target' at point in this list."
  (qwen-companion-rewind--target-of (qwen-companion-rewind--turn-at-point)))

(defun qwen-companion-rewind-turn (part)
  "Rewind to before the turn at point in this list.
PART is as for `qwen-companion-rewind'.  If the turn was already rewound,
resume the conversation from before that."
  (interactive (list (qwen-companion-rewind--part current-prefix-arg))
               qwen-companion-changes-mode)
  (let ((turn (qwen-companion-rewind--turn-at-point)))
    (if (qwen-companion-turn-rewound turn)
        (qwen-companion-rewind--return turn)
      (qwen-companion-rewind--rewind (qwen-companion-rewind--target-of turn) part))))

(defun qwen-companion-rewind--rewind (target part)
  "Rewind to before TARGET, after confirmation.
PART is as for `qwen-companion-rewind'."
  (let* ((turns (qwen-companion-rewind--ended-turns target part))
         (files (mapcan (lambda (turn) (copy-sequence (qwen-companion-turn-files turn))) turns))
         (method (unless (eq part 'files) (qwen-companion-rewind--method target))))
    (unless (or files (cdr method))
      (user-error "Nothing to rewind: %s" (or (car method) "no file has changes to undo since that prompt")))
    (qwen-companion-undo-confirm
     (delete-dups (mapcar #'qwen-companion-changed-file-path files)) "rewind"
     (qwen-companion-rewind--plan target part turns files method))
    (unless (equal (mapcar #'qwen-companion-turn-id turns)
                   (mapcar #'qwen-companion-turn-id
                           (qwen-companion-rewind--ended-turns target part)))
      (user-error "The turns have just changed; check them and try again"))
    (when (cdr method)
      (qwen-companion-rewind-note target nil t))
    (if (and files (not (qwen-companion-rewind--files target turns)))
        (message "Stopped; the conversation is unchanged, repeat to continue")
      (when (cdr method)
        (funcall (cdr method))))))

(defun qwen-companion-rewind--ended-turns (target part)
  "Return the list of each turn to undo for rewinding PART to before TARGET.
Signal a `user-error' while the agent works on one."
  (let ((ended (lambda ()
                 (cl-every #'qwen-companion-turn-end (qwen-companion-rewind--turns target)))))
    ;; The end of a turn is reported a moment later.
    (qwen-companion-backend-wait ended qwen-companion-rewind--patience)
    (unless (funcall ended)
      (user-error "The agent is still working on this conversation; wait, or cancel its turn"))
    (unless (eq part 'conversation)
      ;; Undoing one again would conflict with later writes.
      (seq-remove (lambda (turn) (eq t (qwen-companion-changes-items-undone turn)))
                  (qwen-companion-rewind--turns target)))))

(defun qwen-companion-rewind--method (target)
  "Return (WORDS . FUNCTION) for the conversation of TARGET.
See `qwen-companion-rewind-conversation-functions'."
  (or (run-hook-with-args-until-success 'qwen-companion-rewind-conversation-functions target)
      (qwen-companion-rewind-cli-method target)))

(defun qwen-companion-rewind--plan (target part turns files method)
  "Describe in one line the effect of rewinding PART to before TARGET.
TURNS are undone, with FILES; METHOD is as `qwen-companion-rewind--method'
returns it, nil where the conversation is to stay."
  (let ((notes (delete-dups (mapcan (lambda (turn)
                                      (copy-sequence (qwen-companion-turn-notes turn)))
                                    turns))))
    (string-join
     (delq nil
           (list
            (format "Rewind to before %s"
                    (qwen-companion-rewind-cli-title (qwen-companion-rewind-target-prompt target)))
            (cond (files
                   (format "undo %d turn%s (%s), your own edits stay"
                           (length turns) (if (cdr turns) "s" "")
                           (qwen-companion-changes-undo-words
                            (qwen-companion-rewind--first-kinds files) 'undo)))
                  ((eq part 'conversation) "the files stay")
                  (t "no file has changes to undo"))
            (and notes
                 (format "not recorded, so it stays: %s"
                         (qwen-companion-untrusted-line (string-join notes ", "))))
            (if method (car method) "the conversation stays")))
     "; ")))

(defun qwen-companion-rewind--first-kinds (files)
  "Return the oldest element of FILES, newest first, for each path.
It says whether the file existed before all of the turns."
  (let ((oldest (make-hash-table :test #'equal)))
    (dolist (file files)
      (puthash (qwen-companion-changed-file-path file) file oldest))
    (hash-table-values oldest)))

(defun qwen-companion-rewind--files (target turns)
  "Rewind the files to before TARGET, and report the outcome.
Undo TURNS, newest first.  Return nil if the user stops it."
  (let ((title (qwen-companion-rewind-cli-title (qwen-companion-rewind-target-prompt target)))
        (outcomes nil)
        (count 0)
        (stopped nil))
    (dolist (turn turns)
      (unless stopped
        (let* ((files (seq-remove (lambda (file)
                                    ;; It now has conflict markers.
                                    (eq 'conflict (alist-get (qwen-companion-changed-file-path file)
                                                             outcomes nil nil #'equal)))
                                  (qwen-companion-turn-files turn)))
               (results (qwen-companion-undo-files
                         (list :root (qwen-companion-turn-root turn) :scope 'turn
                               :turn (qwen-companion-turn-id turn))
                         files (qwen-companion-turn-id turn) (concat "Rewind to before " title)
                         'undo)))
          (setq stopped (length< results (length files))
                outcomes (qwen-companion-rewind--worst outcomes results)
                count (max (length outcomes)
                           (if stopped (+ (length outcomes) (- (length files) (length results))) 0))))))
    (qwen-companion-changes-items-reload-shown (mapcar #'car outcomes))
    (when-let* ((words (qwen-companion-changes-undo-outcome outcomes count "undone")))
      (message "%s" words))
    (not stopped)))

(defun qwen-companion-rewind--worst (outcomes results)
  "Return the alist OUTCOMES with RESULTS, see `qwen-companion-undo-apply-steps'.
Of two outcomes for one file, keep the worse."
  (let ((rank (lambda (result) (if (stringp result) 3 (seq-position '(same written unsaved) result)))))
    (pcase-dolist (`(,path . ,result) results)
      (let ((known (assoc path outcomes)))
        (cond ((null known) (push (cons path result) outcomes))
              ((or (eq result 'conflict)
                   (> (or (funcall rank result) 4) (or (funcall rank (cdr known)) 4)))
               (setcdr known result)))))
    outcomes))

;;; Afterwards

(defun qwen-companion-rewind--return (turn)
  "Resume the conversation of TURN from before it was rewound."
  (let ((copy (pcase (qwen-companion-rewind-cli-copy turn)
                ('nil (qwen-companion-header-error
                       "No copy of the conversation was kept; \\[qwen-companion-changes-bring-back] brings the files back"))
                ('coming (user-error "The copy of the conversation is not ready yet; try again in a moment"))
                (copy copy)))
        (root (qwen-companion-turn-root turn)))
    (when (y-or-n-p "Resume the conversation from before the rewind in a second session? ")
      (or (run-hook-with-args-until-success 'qwen-companion-rewind-return-functions copy)
          (qwen-companion-terminal-open root (list "--resume" copy))))))

;;; Forks

;;;###autoload
(defun qwen-companion-fork (&optional worktree)
  "Fork a conversation after a turn into a CLI in a second terminal.
The new CLI has a copy of the conversation up to the turn at point in the
buffer of changes; in other buffers, choose the turn.  The first CLI does
not change, and both work on the same files.  With a prefix argument, ask
for the name of a git WORKTREE for the new CLI; if it does not exist, make
it from the last commit."
  (interactive (list (and current-prefix-arg (read-string "Fork into the worktree: "))))
  (qwen-companion-journal-call-with-turns
   (lambda ()
     (when-let* ((target (qwen-companion-rewind--read)))
       (qwen-companion-rewind--fork target worktree)))))

(defun qwen-companion-rewind--fork (target worktree)
  "Start a CLI with a copy of the conversation of TARGET up to the end of its turn.
With WORKTREE, a name, it works in that worktree of the repository."
  (let ((root (qwen-companion-rewind-target-root target)))
    (unless (qwen-companion-rewind-target-session target)
      (qwen-companion-header-error
       "A chat can only be forked at its end, with \\<qwen-companion-chat-mode-map>\\[qwen-companion-chat-fork] in the chat"))
    (when (file-remote-p root)
      (user-error "Cannot fork a conversation on another host"))
    (if worktree
        (message "Forking into worktree %s%s" worktree
                 (qwen-companion-terminal-in-worktrees
                  root (list worktree)
                  (lambda (tree) (qwen-companion-rewind--fork-into target root tree))))
      (qwen-companion-rewind--fork-into target root nil))))

(defun qwen-companion-rewind--fork-into (target root tree)
  "Start a CLI with a copy of the conversation of TARGET, recorded in ROOT.
It works in the worktree TREE, or with nil in ROOT."
  (qwen-companion-rewind-cli-ask
   "Copying" root nil target
   (lambda (answer)
     (if-let* ((error-text (qwen-companion-recorded-rewound-error answer)))
         (message "Copying the conversation failed: %s"
                  (qwen-companion-journal-sentence error-text))
       (message "Forked the conversation into another terminal")
       (qwen-companion-terminal-open
        (or tree root) (list "--resume" (qwen-companion-recorded-rewound-copy answer)))))
   tree))

(provide 'qwen-companion-rewind)
;;; qwen-companion-rewind.el ends here
