;;; qwen-companion-rewind.el --- Go back to before a prompt  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-rewind' takes a conversation and the files back to before a
;; prompt.  The files go back by the journal: each turn of the conversation
;; since then is undone, the newest first, so edits of the user's and of other
;; agents stay.  Qwen Code's own rewind would write whole files anew.
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
  "Abnormal hook to find out how a conversation is rewound.
Each function gets a `qwen-companion-rewind-target' and returns nil when
the conversation is none of its own, else (WORDS . FUNCTION).  FUNCTION
begins to rewind it; nil when that cannot be done.  WORDS say for the
question to the user what happens to the conversation, or why it stays.
A `user-error' means that nothing can be rewound now.")

(defvar qwen-companion-rewind-return-functions nil
  "Abnormal hook to go on with a copy of a rewound conversation.
Each function gets the name of a copy, as it was given to
`qwen-companion-rewind-note', and returns non-nil if it has opened it.")

(defvar-local qwen-companion-rewind-target-function nil
  "Function that returns the `qwen-companion-rewind-target' at point.
It is called without arguments in the buffer that has it.  It says so and
returns nil where there is none.")

(defconst qwen-companion-rewind--patience 1
  "Seconds for which the end of a turn is waited for.")

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
  (let ((start (- (qwen-companion-rewind-target-start target) qwen-companion-rewind-cli-early)))
    (seq-filter (lambda (turn)
                  (and (equal (qwen-companion-rewind-target-conversation target)
                              (qwen-companion-turn-conversation turn))
                       (memq (qwen-companion-turn-source turn) '(hooks chat))
                       (not (qwen-companion-turn-rewound turn))
                       (>= (qwen-companion-turn-start turn) start)))
                (qwen-companion-journal-turns))))

(defun qwen-companion-rewind--read ()
  "Return the target at point, or read one.
Say so and return nil where there is none."
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
          (ignore (message "No turn is recorded here that could be rewound"))
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
  "Return the part to rewind by the prefix argument PREFIX: nil for all.
Or `files', or `conversation'."
  (pcase prefix
    ('nil nil)
    ('(16) 'conversation)
    (_ 'files)))

;;;###autoload
(defun qwen-companion-rewind (&optional part)
  "Go back to before a prompt: the conversation and the files.
The prompt is that at point in the buffer of changes and in a chat; in
other buffers, choose one of the terminal's or the project's turns.  What
is going to happen is said first.

Files go back by the journal, so your own edits stay, and conflicts are
shown as those of an undo.  The prompt comes back, to be edited: into the
input of a chat, or a prompt buffer for a CLI in a terminal, which is
ended for this and goes on in the same place.

PART is `files' or `conversation' to leave the other as it is, which a
prefix argument does: one for the files only, two for the conversation."
  (interactive (list (qwen-companion-rewind--part current-prefix-arg)))
  (qwen-companion-journal-call-with-turns
   (lambda ()
     (when-let* ((target (qwen-companion-rewind--read)))
       (qwen-companion-rewind--rewind target part)))))

(defun qwen-companion-rewind--turn-at-point ()
  "Return the turn at point in this list, or signal a `user-error'."
  (let ((group (qwen-companion-changes-items-group-at-point)))
    (or (qwen-companion-journal-turn (qwen-companion-changes-items-group-turn group))
        (qwen-companion-header-error "This is no single turn; \\[qwen-companion-changes-show-turns] shows the turns"))))

(defun qwen-companion-rewind-target-at-point ()
  "Return the `qwen-companion-rewind-target' at point in this list."
  (qwen-companion-rewind--target-of (qwen-companion-rewind--turn-at-point)))

(defun qwen-companion-rewind-turn (part)
  "Rewind to before the turn at point in this list.
PART is as for `qwen-companion-rewind'.  If the turn was rewound, go on
with the conversation as it was before."
  (interactive (list (qwen-companion-rewind--part current-prefix-arg))
               qwen-companion-changes-mode)
  (let ((turn (qwen-companion-rewind--turn-at-point)))
    (if (qwen-companion-turn-rewound turn)
        (qwen-companion-rewind--return turn)
      (qwen-companion-rewind--rewind (qwen-companion-rewind--target-of turn) part))))

(defun qwen-companion-rewind--rewind (target part)
  "Rewind to before TARGET after a question.
PART is as for `qwen-companion-rewind'."
  (let* ((turns (qwen-companion-rewind--ended-turns target part))
         (files (mapcan (lambda (turn) (copy-sequence (qwen-companion-turn-files turn))) turns))
         (door (unless (eq part 'files) (qwen-companion-rewind--door target))))
    (unless (or files (cdr door))
      (user-error "Nothing to rewind: %s" (or (car door) "no file has changes to undo since that prompt")))
    (qwen-companion-undo-confirm
     (delete-dups (mapcar #'qwen-companion-changed-file-path files)) "rewind"
     (qwen-companion-rewind--plan target part turns files door))
    (unless (equal (mapcar #'qwen-companion-turn-id turns)
                   (mapcar #'qwen-companion-turn-id
                           (qwen-companion-rewind--ended-turns target part)))
      (user-error "The turns have just changed; look at what is shown now"))
    (when (cdr door)
      (qwen-companion-rewind-note target nil t))
    (if (and files (not (qwen-companion-rewind--files target turns)))
        (message "Stopped; the conversation is unchanged, and the same key continues")
      (when (cdr door)
        (funcall (cdr door))))))

(defun qwen-companion-rewind--ended-turns (target part)
  "Return the list of each turn to undo for rewinding PART to before TARGET.
Signal a `user-error' while the agent works on one."
  (let ((ended (lambda ()
                 (cl-every #'qwen-companion-turn-end (qwen-companion-rewind--turns target)))))
    ;; The end of one that has just ended is told a moment later.
    (qwen-companion-backend-wait ended qwen-companion-rewind--patience)
    (unless (funcall ended)
      (user-error "The agent still works on a turn of this conversation; wait until it has ended, or cancel it"))
    (unless (eq part 'conversation)
      ;; To undo one again would contradict what was written there since.
      (seq-remove (lambda (turn) (eq t (qwen-companion-changes-items-undone turn)))
                  (qwen-companion-rewind--turns target)))))

(defun qwen-companion-rewind--door (target)
  "Return (WORDS . FUNCTION) for the conversation of TARGET.
See `qwen-companion-rewind-conversation-functions'."
  (or (run-hook-with-args-until-success 'qwen-companion-rewind-conversation-functions target)
      (qwen-companion-rewind-cli-door target)))

(defun qwen-companion-rewind--plan (target part turns files door)
  "Return in one line what rewinding PART to before TARGET does.
TURNS are undone, with FILES; DOOR is as `qwen-companion-rewind--door'
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
            (if door (car door) "the conversation stays")))
     "; ")))

(defun qwen-companion-rewind--first-kinds (files)
  "Return one of FILES, newest first, for each path: the oldest.
It says whether the file was there before all of the turns."
  (let ((oldest (make-hash-table :test #'equal)))
    (dolist (file files)
      (puthash (qwen-companion-changed-file-path file) file oldest))
    (hash-table-values oldest)))

(defun qwen-companion-rewind--files (target turns)
  "Take the files back to before TARGET, and say how that ended.
TURNS are undone, the newest first.  Return nil if the user stops it."
  (let ((title (qwen-companion-rewind-cli-title (qwen-companion-rewind-target-prompt target)))
        (outcomes nil)
        (count 0)
        (stopped nil))
    (dolist (turn turns)
      (unless stopped
        (let* ((files (seq-remove (lambda (file)
                                    ;; It has marks of conflicts now.
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
  "Return the alist OUTCOMES with RESULTS, see `qwen-companion-undo-run'.
Of two for one file, that of which the user has to know more is kept."
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
  "Go on with the conversation of TURN as it was before it was rewound."
  (let ((copy (pcase (qwen-companion-rewind-cli-copy turn)
                ('nil (qwen-companion-header-error
                       "No copy of the conversation was kept; \\[qwen-companion-changes-bring-back] brings the files back"))
                ('coming (user-error "No copy of the conversation is known yet; try again in a moment"))
                (copy copy)))
        (root (qwen-companion-turn-root turn)))
    (when (y-or-n-p "Resume the conversation from before the rewind in a second session? ")
      (or (run-hook-with-args-until-success 'qwen-companion-rewind-return-functions copy)
          (qwen-companion-terminal-open root (list "--resume" copy))))))

;;; Going on beside it

;;;###autoload
(defun qwen-companion-fork (&optional worktree)
  "Go on from a turn in a second terminal; the first CLI stays as it is.
The second one has a copy of the conversation that ends with the turn at
point in the buffer of changes; in other buffers, choose one.  Both work
on the same files.  With a prefix argument, ask for the name of a git
WORKTREE in which the second one works; it is made if it is not there,
from the last commit."
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
       "A chat can be forked at its end only, with \\<qwen-companion-chat-mode-map>\\[qwen-companion-chat-fork] there"))
    (when (file-remote-p root)
      (user-error "A conversation on another host cannot be forked"))
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
         (message "The conversation was not copied: %s"
                  (qwen-companion-journal-sentence error-text))
       (message "The copy of the conversation goes on in another terminal")
       (qwen-companion-terminal-open
        (or tree root) (list "--resume" (qwen-companion-recorded-rewound-copy answer)))))
   tree))

(provide 'qwen-companion-rewind)
;;; qwen-companion-rewind.el ends here
