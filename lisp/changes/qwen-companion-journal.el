;;; qwen-companion-journal.el --- Ask the journal of the agents' changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python process keeps a journal: which turn of which CLI changed which
;; file, and the bytes before and after.  This file has the list of turns,
;; updated while a view shows it; requests to the journal and their answers;
;; and the reports of the files that the user's own commands write.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-roots)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;; The turns

(defvar qwen-companion-journal--turns (make-hash-table :test #'equal)
  "The turns by their ids, while they are watched.")

(defvar qwen-companion-journal--index nil
  "Index of every turn, or nil when one has changed since it was made.")

(defvar qwen-companion-journal--watchers nil
  "Symbols of the views that show turns or their contents.")

(defvar qwen-companion-journal--prompts (make-hash-table :test #'equal)
  "Fetched prompts: a table from the id of a turn to (ORIGIN . PROMPT).
The value is `unknown' if the journal has no such turn.")

(defvar qwen-companion-journal--unrecorded nil
  "Roots whose changes are not recorded: a list of (ROOT REASON).")

(defvar qwen-companion-journal--crowded nil
  "Roots whose turns need too much room: a list of (ROOT BYTES).")

(defvar qwen-companion-journal-changed-functions nil
  "Abnormal hook run when turns have changed.
Each function gets a list of the files that were changed in them, or t
for all files.")

(cl-defstruct (qwen-companion-journal--index
               (:constructor qwen-companion-journal--make-index))
  "Index of every turn.
The slot `turns' lists them newest first, and `roots' lists their roots
without duplicates.  `undoings' is a hash table from an id to its
undoings.  `paths' is one from a path to the turns that changed it, made
on demand."
  turns roots undoings paths)

(defun qwen-companion-journal--index ()
  "Return the index of every turn.
The buffer of changes asks for it once for each turn that it shows."
  (or qwen-companion-journal--index
      (let ((turns (sort (hash-table-values qwen-companion-journal--turns)
                         (lambda (a b)
                           (let ((one (qwen-companion-turn-start a))
                                 (other (qwen-companion-turn-start b)))
                             (if (= one other)
                                 (string> (qwen-companion-turn-id a)
                                          (qwen-companion-turn-id b))
                               (> one other))))))
            (undoings (make-hash-table :test #'equal)))
        (dolist (turn (reverse turns))
          (when-let* ((id (qwen-companion-turn-undone-of turn)))
            (push turn (gethash id undoings))))
        (setq qwen-companion-journal--index
              (qwen-companion-journal--make-index
               :turns turns :undoings undoings
               :roots (delete-dups (mapcar #'qwen-companion-turn-root turns)))))))

(defun qwen-companion-journal-turns ()
  "Return the list of every turn, newest first; it must not be changed.
Each is in the form of `qwen-companion-turn-id'."
  (qwen-companion-journal--index-turns (qwen-companion-journal--index)))

(defun qwen-companion-journal-roots ()
  "Return the root of every turn, each root once; the list must not be changed."
  (qwen-companion-journal--index-roots (qwen-companion-journal--index)))

(defun qwen-companion-journal-undoings (id)
  "Return each undoing of a part of the turn ID, newest first."
  (gethash id (qwen-companion-journal--index-undoings (qwen-companion-journal--index))))

(defun qwen-companion-journal-turns-of (path)
  "Return each turn in which the file PATH was changed, newest first."
  (let ((index (qwen-companion-journal--index)))
    (unless (qwen-companion-journal--index-paths index)
      (let ((paths (make-hash-table :test #'equal)))
        (dolist (turn (reverse (qwen-companion-journal--index-turns index)))
          (dolist (file (qwen-companion-turn-files turn))
            (push turn (gethash (qwen-companion-changed-file-path file) paths))))
        (setf (qwen-companion-journal--index-paths index) paths)))
    (gethash path (qwen-companion-journal--index-paths index))))

(defun qwen-companion-journal-turn (id)
  "Return the turn ID, or nil."
  (gethash id qwen-companion-journal--turns))

(defun qwen-companion-journal-prompt (id)
  "Return (ORIGIN . PROMPT) of the turn ID, or nil if it was not fetched.
ORIGIN is a property list, see `qwen-companion-turn-origin-client'; PROMPT
is the whole prompt."
  (let ((known (gethash id qwen-companion-journal--prompts)))
    (and (consp known) known)))

(defun qwen-companion-journal-fetch-prompts (ids callback)
  "Request the prompt of each turn in IDS for which it is unknown.
Then call CALLBACK, with the reason if that fails, else with nil.  Return
nil and do nothing if all prompts are known."
  (when-let* ((new (cl-remove-if (lambda (id) (gethash id qwen-companion-journal--prompts))
                                 (delete-dups ids))))
    (qwen-companion-journal-ask
     'journal-prompts (list :turns new)
     (lambda (reply)
       (let ((reason (qwen-companion-journal-reply-error reply)))
         (unless reason
           (dolist (id new)
             (puthash id 'unknown qwen-companion-journal--prompts))
           (cl-mapc (lambda (origin prompt)
                      (puthash (qwen-companion-turn-origin-turn origin) (cons origin prompt)
                               qwen-companion-journal--prompts))
                    (qwen-companion-journal-reply-turns reply)
                    (split-string (qwen-companion-spool-text
                                   (qwen-companion-journal-reply-prompts reply))
                                  "\0")))
         (funcall callback reason))))
    t))

(defun qwen-companion-journal-file (turn path)
  "Return the changed file PATH of TURN, or nil."
  (cl-find path (qwen-companion-turn-files turn)
           :key #'qwen-companion-changed-file-path :test #'equal))

(defun qwen-companion-journal-on-turns (payload)
  "Handle the message PAYLOAD about each turn that is new or has changed."
  (let ((reset (qwen-companion-journal-turns-reset payload))
        paths)
    (setq qwen-companion-journal--index nil)
    (when reset
      (qwen-companion-journal--forget-turns))
    (dolist (id (qwen-companion-journal-turns-gone payload))
      (when-let* ((turn (qwen-companion-journal-turn id)))
        (setq paths (nconc (mapcar #'qwen-companion-changed-file-path
                                   (qwen-companion-turn-files turn))
                           paths))
        (remhash id qwen-companion-journal--turns)))
    (dolist (turn (qwen-companion-journal-turns-turns payload))
      ;; It may have used another model since.
      (remhash (qwen-companion-turn-id turn) qwen-companion-journal--prompts)
      (setq paths (nconc (mapcar #'qwen-companion-changed-file-path
                                 (qwen-companion-turn-files turn))
                         (copy-sequence (qwen-companion-turn-files-gone turn))
                         paths))
      (qwen-companion-journal--store-turn turn))
    (when qwen-companion-journal--watchers
      (run-hook-with-args 'qwen-companion-journal-changed-functions
                          (or reset (delete-dups paths)))
      (when (qwen-companion-proposals)
        ;; The header of a review names other CLIs that change its file.
        (force-mode-line-update t))))
  nil)

(defun qwen-companion-journal-on-unrecorded (payload)
  "Handle the message PAYLOAD: the roots that are not recorded, or need much room."
  (setq qwen-companion-journal--unrecorded
        (qwen-companion-journal-unrecorded-reasons payload)
        qwen-companion-journal--crowded
        (qwen-companion-journal-unrecorded-crowded payload))
  (run-hook-with-args 'qwen-companion-journal-changed-functions nil)
  nil)

(defun qwen-companion-journal-problems ()
  "Return a line for each published root that is not recorded or needs much room."
  (mapcar
   #'qwen-companion-untrusted-line
   (nconc
    (cl-loop for (root reason) in qwen-companion-journal--unrecorded
             when (member root (qwen-companion-roots-published))
             collect (format "Changes in %s are not recorded: %s" root reason))
    (cl-loop for (root bytes) in qwen-companion-journal--crowded
             when (member root (qwen-companion-roots-published))
             collect (format "The turns of %s need %s; M-x qwen-companion-journal-prune forgets the oldest"
                             root (qwen-companion-journal-size bytes))))))

(defun qwen-companion-journal-size (bytes)
  "Return in words how much BYTES is."
  (file-size-human-readable bytes 'iec " "))

(defun qwen-companion-journal--store-turn (turn)
  "Store TURN; keep its known files unless they are gone."
  (let* ((id (qwen-companion-turn-id turn))
         (files (qwen-companion-turn-files turn))
         (named (make-hash-table :test #'equal))
         (others (progn
                   (dolist (path (append (mapcar #'qwen-companion-changed-file-path files)
                                         (qwen-companion-turn-files-gone turn)))
                     (puthash path t named))
                   (cl-remove-if
                    (lambda (file)
                      (gethash (qwen-companion-changed-file-path file) named))
                    (qwen-companion-turn-files (qwen-companion-journal-turn id))))))
    (puthash id
             (plist-put (copy-sequence turn) :files
                        (sort (append others files nil)
                              (lambda (a b)
                                (string< (qwen-companion-changed-file-path a)
                                         (qwen-companion-changed-file-path b)))))
             qwen-companion-journal--turns)))

(defun qwen-companion-journal--forget-turns ()
  "Forget every turn."
  (clrhash qwen-companion-journal--turns)
  (clrhash qwen-companion-journal--prompts)
  (setq qwen-companion-journal--index nil))

(defun qwen-companion-journal-watch (watcher on)
  "Keep each turn up to date for WATCHER, a symbol, while ON is non-nil.
If ON is nil, stop for WATCHER."
  (let ((before (and qwen-companion-journal--watchers t)))
    (setq qwen-companion-journal--watchers
          (if on
              (cl-adjoin watcher qwen-companion-journal--watchers)
            (delq watcher qwen-companion-journal--watchers)))
    (let ((now (and qwen-companion-journal--watchers t)))
      (unless (eq before now)
        (unless now
          (qwen-companion-journal--forget-turns))
        (qwen-companion-backend-call 'journal-watch (list :on now))))))

(defun qwen-companion-journal-watch-while-live (watcher)
  "Keep each turn up to date for WATCHER until the current buffer is killed."
  (qwen-companion-journal-watch watcher t)
  (add-hook 'kill-buffer-hook (lambda () (qwen-companion-journal-watch watcher nil)) nil t))

(defun qwen-companion-journal-call-with-turns (function)
  "Call FUNCTION with each turn of the journal loaded.
Signal a `user-error' while the companion is off."
  (when (eq (qwen-companion-state) 'off)
    (user-error "The companion is off and has no journal; turn it on with M-x qwen-companion-mode"))
  (let* ((told (qwen-companion-journal-watched-p))
         (note (lambda (paths) (setq told (or told (eq t paths))))))
    (add-hook 'qwen-companion-journal-changed-functions note)
    (unwind-protect
        (progn
          (qwen-companion-journal-watch 'call t)
          (unless (qwen-companion-backend-wait (lambda () told) 10)
            (user-error "The journal does not answer; try again in a moment"))
          (funcall function))
      (remove-hook 'qwen-companion-journal-changed-functions note)
      (qwen-companion-journal-watch 'call nil))))

(defun qwen-companion-journal-watched-p ()
  "Return non-nil when each turn is kept up to date."
  (and qwen-companion-journal--watchers t))

(defun qwen-companion-journal-resend ()
  "Tell a new Python process to go on reporting each turn."
  (when qwen-companion-journal--watchers
    (qwen-companion-backend-call 'journal-watch '(:on t))))

;;; Requests

(defconst qwen-companion-journal--limit 10
  "Seconds that a command waits for an answer; it can be quit.")

(defun qwen-companion-journal-ask (method payload callback)
  "Call METHOD of the journal with PAYLOAD; return at once.
CALLBACK gets the answer, in the form of `qwen-companion-journal-reply-id',
with an error text if the request failed."
  (qwen-companion-backend-request
   method payload
   (lambda (reply)
     (funcall callback
              (or reply
                  (list :error "the companion's process is not running; see M-x qwen-companion-log"))))))

(defun qwen-companion-journal-on-reply (payload)
  "Handle the `journal-reply' message PAYLOAD: pass it to its callback."
  (unless (qwen-companion-backend-answer (qwen-companion-journal-reply-id payload) payload)
    (qwen-companion-journal-delete-texts payload))
  nil)

(defun qwen-companion-journal--process-gone ()
  "Forget the problems of roots that the Python process has reported."
  (setq qwen-companion-journal--unrecorded nil
        qwen-companion-journal--crowded nil))

(defun qwen-companion-journal-await (method payload &optional limit)
  "Call METHOD of the journal with PAYLOAD and return the answer.
If there is none within LIMIT seconds, signal a `user-error' with the
reason.  For commands only: it blocks."
  (let ((reply nil))
    (qwen-companion-journal-ask method payload (lambda (answer) (setq reply answer)))
    (qwen-companion-backend-wait (lambda () reply)
                                 (or limit qwen-companion-journal--limit))
    (cond
     ((not reply)
      (user-error "The companion does not answer; try again in a moment"))
     ((qwen-companion-journal-reply-error reply)
      (user-error "%s" (qwen-companion-journal-error reply)))
     (t reply))))

(defun qwen-companion-journal-error (reply)
  "Return the error text of REPLY, as a sentence without its period, or nil."
  (when-let* ((text (qwen-companion-journal-reply-error reply)))
    (qwen-companion-journal-sentence text)))

(defun qwen-companion-journal-sentence (text)
  "Return TEXT, an untrusted error text, as a sentence without its period."
  (let ((text (qwen-companion-untrusted-line text)))
    (concat (upcase (substring text 0 (min 1 (length text))))
            (substring text (min 1 (length text))))))

;;; Bytes

(defun qwen-companion-journal-read-texts (reply)
  "Return each of the texts in REPLY with its bytes; delete their file.
Each is (TEXTS BEFORE AFTER), with the bytes before and after the change,
unibyte strings, or nil where there was no file."
  (when-let* ((file (qwen-companion-journal--texts-file reply)))
    (with-temp-buffer
      (set-buffer-multibyte nil)
      (let ((file-name-handler-alist nil))
        (insert-file-contents-literally file))
      (qwen-companion-journal-delete-texts reply)
      (cl-flet ((part (place)
                  (pcase place
                    (`(,start ,end) (buffer-substring (1+ start) (1+ end))))))
        (mapcar (lambda (texts)
                  (list texts
                        (part (qwen-companion-texts-before texts))
                        (part (qwen-companion-texts-after texts))))
                (qwen-companion-journal-reply-texts reply))))))

(defun qwen-companion-journal-delete-texts (reply)
  "Delete the file with the bytes of the texts in REPLY, if it has one."
  (when-let* ((file (qwen-companion-journal--texts-file reply)))
    (let ((file-name-handler-alist nil))
      (delete-file file))))

(defun qwen-companion-journal--texts-file (reply)
  "Return the file with the bytes of the texts in REPLY, or nil.
It is in the private directory; signal an error if it is not."
  (when-let* ((file (qwen-companion-journal-reply-texts-file reply))
              (spool (qwen-companion-backend-spool)))
    (unless (qwen-companion-untrusted-in-directory-p file spool)
      (error "File outside the private directory"))
    file))

;;; Texts of many files

(cl-defstruct (qwen-companion-journal-texts (:copier nil))
  "Texts of many files, requested in parts.
PART is the part of the journal, as in a request.  FILES are those still
missing, as in the request `journal-texts', and READY the received texts,
with their bytes.  PENDING is non-nil during a request.  ERROR is the
reason why no more will arrive, a string, or nil."
  part files ready pending error)

(defvar qwen-companion-journal--texts-at-once 300
  "Number of files per request for texts.
The answer takes as long as the undo of half of them.")

(defvar qwen-companion-journal--texts-limit 60
  "Seconds that a command waits for the texts of a file; it can be quit.
A busy machine may have to unpack two texts of 64 MiB.")

(defun qwen-companion-journal-next-texts (texts)
  "Return the texts of the next file of TEXTS, with their bytes.
They are as in `qwen-companion-journal-read-texts'.  Texts of later files
are requested in advance.  Signal a `user-error' when there is no answer,
and then for each further file."
  (unless (qwen-companion-journal-texts-error texts)
    (qwen-companion-journal--ask-for-texts texts))
  (unless (qwen-companion-backend-wait
           (lambda () (or (qwen-companion-journal-texts-ready texts)
                          (qwen-companion-journal-texts-error texts)))
           qwen-companion-journal--texts-limit)
    (setf (qwen-companion-journal-texts-error texts)
          "The companion does not answer; try again in a moment"))
  (unless (qwen-companion-journal-texts-ready texts)
    (user-error "%s" (qwen-companion-journal-texts-error texts)))
  (pop (qwen-companion-journal-texts-ready texts)))

(defun qwen-companion-journal--ask-for-texts (texts)
  "Request more of TEXTS, unless enough are received or requested."
  (when (and (qwen-companion-journal-texts-files texts)
             (not (qwen-companion-journal-texts-pending texts))
             (length< (qwen-companion-journal-texts-ready texts)
                      (/ qwen-companion-journal--texts-at-once 2)))
    (setf (qwen-companion-journal-texts-pending texts) t)
    (qwen-companion-journal-ask
     'journal-texts
     (append (qwen-companion-journal-texts-part texts)
             (list :files (seq-take (qwen-companion-journal-texts-files texts)
                                    qwen-companion-journal--texts-at-once)))
     (lambda (reply) (qwen-companion-journal--add-texts texts reply)))))

(defun qwen-companion-journal--add-texts (texts reply)
  "Add the texts of REPLY to TEXTS; delete them if TEXTS has ended."
  (if (or (not (qwen-companion-journal-texts-pending texts))
          (qwen-companion-journal-texts-error texts))
      (qwen-companion-journal-delete-texts reply)
    (let ((new (qwen-companion-journal-read-texts reply)))
      (setf (qwen-companion-journal-texts-pending texts) nil
            (qwen-companion-journal-texts-error texts)
            (qwen-companion-journal-error reply)
            (qwen-companion-journal-texts-files texts)
            (nthcdr (length new) (qwen-companion-journal-texts-files texts))
            (qwen-companion-journal-texts-ready texts)
            (append (qwen-companion-journal-texts-ready texts) new)))))

(defun qwen-companion-journal-end-texts (texts)
  "Request no more of TEXTS, and delete those received."
  (setf (qwen-companion-journal-texts-pending texts) nil
        (qwen-companion-journal-texts-ready texts) nil))

;;; Forgetting turns

(defconst qwen-companion-journal--prune-limit 120
  "Seconds that forgetting may take: each byte is overwritten.")

(defun qwen-companion-journal--read-turns (sizes)
  "Ask up to which turn to forget; return that part of SIZES.
SIZES is a list of (TURN BYTES), oldest first."
  (let* ((total 0)
         (choices
          (cl-loop
           for (id bytes) in sizes and count from 1
           for turn = (qwen-companion-journal-turn id)
           do (cl-incf total bytes)
           when turn
           collect (cons (format "%d: %s %s" count
                                 (format-time-string "%F %R" (/ (qwen-companion-turn-start turn) 1000))
                                 (qwen-companion-untrusted-line (qwen-companion-turn-prompt turn)))
                         (list count bytes total)))))
    (seq-take sizes
              (or (car (qwen-companion-completion-read
                        "Forget turns up to: " choices nil
                        (pcase-lambda (`(,_ ,bytes ,total))
                          (format "%s, all up to it %s" (qwen-companion-journal-size bytes)
                                  (qwen-companion-journal-size total)))))
                  (user-error "No turn chosen")))))

(defun qwen-companion-journal--prune-question (chosen)
  "Return the question before each of CHOSEN is forgotten.
It names the files that no longer exist.  CHOSEN is a list of (TURN
BYTES)."
  (let ((gone (cl-loop
               for (id _) in chosen
               append (cl-loop
                       for file in (qwen-companion-turn-files (qwen-companion-journal-turn id))
                       for path = (qwen-companion-changed-file-path file)
                       unless (or (file-remote-p path) (file-exists-p path))
                       collect (file-name-nondirectory (qwen-companion-untrusted-path path))))))
    (format "Forget %s (%s)? %s cannot be undone then%s "
            (if (cdr chosen) (format "the %d oldest turns" (length chosen)) "the oldest turn")
            (qwen-companion-journal-size (apply #'+ (mapcar #'cadr chosen)))
            (if (cdr chosen) "They" "It")
            (if (null gone)
                "."
              (setq gone (delete-dups gone))
              (format ", and no copy is kept of %s%s."
                      (string-join (seq-take gone 10) ", ")
                      (if (length> gone 10) (format " and %d more files" (- (length gone) 10)) ""))))))

;;;###autoload
(defun qwen-companion-journal-prune ()
  "Forget the oldest part of what is recorded of a project, to free disk space.
Choose the last turn to forget; each is shown with its size.  Ask before
forgetting, naming the loss.  Turns in progress are kept."
  (interactive)
  (qwen-companion-journal-call-with-turns
   (lambda ()
     (let* ((roots (or (qwen-companion-journal-roots) (user-error "No turn is recorded")))
            (here (qwen-companion-terminal-here))
            (root (if (or (member here roots) (null (cdr roots)))
                      (or (car (member here roots)) (car roots))
                    (completing-read "Forget turns of: " roots nil t)))
            (chosen (qwen-companion-journal--read-turns
                     (or (qwen-companion-journal-reply-sizes
                          (qwen-companion-journal-await
                           'journal-prune (list :root root :turns nil)))
                         (user-error "No turn of %s has ended" root)))))
       (when (yes-or-no-p (qwen-companion-journal--prune-question chosen))
         (qwen-companion-journal-await
          'journal-prune (list :root root :turns (mapcar #'car chosen))
          qwen-companion-journal--prune-limit)
         (message "Forgot %d turn%s" (length chosen) (if (cdr chosen) "s" "")))))))

;;; Writes by the user's commands

(defvar qwen-companion-journal-inhibit nil
  "Non-nil while saves are not reported one by one.")

(defun qwen-companion-journal--saved ()
  "Report that the user has saved the current buffer."
  (when (and buffer-file-name
             (not qwen-companion-journal-inhibit)
             (if (file-remote-p buffer-file-name)
                 (qwen-companion-places-root buffer-file-name)
               (qwen-companion-journal--below-root-p buffer-file-name)))
    (qwen-companion-journal-wrote (list (expand-file-name buffer-file-name)))))

(defun qwen-companion-journal--below-root-p (file)
  "Return non-nil when FILE, or its true name, is below a published root."
  (cl-some (lambda (root)
             (or (string-prefix-p (file-name-as-directory root) file)
                 (string-prefix-p (file-name-as-directory (file-truename root))
                                  (expand-file-name buffer-file-truename))))
           (qwen-companion-roots-published)))

(defun qwen-companion-journal-wrote (paths &optional turn label action)
  "Report that a command of the user has written PATHS.
ACTION is what it did with a part of TURN: `undo', `bring-back' to restore
undone changes, or `merge' for changes in a worktree, for which TURN may
be nil.  LABEL describes it in words.  The ACTION `commit' wrote no file."
  (qwen-companion-backend-call
   'journal-wrote (append (list :paths paths)
                          (and (or turn action)
                               (list :turn turn :label label :action action)))))

(defun qwen-companion-journal-committed ()
  "Report that the user has committed, if `qwen-companion-commit-notes' is on."
  (when qwen-companion-commit-notes
    (qwen-companion-journal-wrote nil nil nil 'commit)))

;;; Proposed texts

(defconst qwen-companion-journal--proposals-limit '(50 . 5000000)
  "Maximum number of stored proposals and of their characters.")

(defvar qwen-companion-journal--proposals nil
  "The latest proposals, newest first: (PATH TIME . TEXT), TIME in seconds.")

(defvar qwen-companion-journal--arrived nil
  "Proposals that have just arrived, whose texts are not stored yet.")

(defun qwen-companion-journal--proposed (proposal)
  "Schedule to store the text of PROPOSAL, which has just arrived.
Making a long string collects garbage, which would delay its review."
  (push proposal qwen-companion-journal--arrived)
  (run-at-time 0.2 nil #'qwen-companion-journal--store-proposed proposal))

(defun qwen-companion-journal--store-proposed (proposal &rest _)
  "Store the text of PROPOSAL, unless it is stored or too long."
  (let ((room (cdr qwen-companion-journal--proposals-limit)))
    (when (memq proposal qwen-companion-journal--arrived)
      (setq qwen-companion-journal--arrived (delq proposal qwen-companion-journal--arrived))
      (let ((buffer (qwen-companion-proposal-buffer proposal)))
        (when (<= (buffer-size buffer) room)
          (push (cons (qwen-companion-proposal-path proposal)
                      (cons (qwen-companion-proposal-arrived proposal)
                            (qwen-companion-buffers-text buffer)))
                qwen-companion-journal--proposals))))
    (setq qwen-companion-journal--proposals
          (cl-loop for kept in (seq-take qwen-companion-journal--proposals
                                         (car qwen-companion-journal--proposals-limit))
                   do (cl-decf room (length (cddr kept)))
                   while (>= room 0)
                   collect kept))))

(defun qwen-companion-journal-proposed-text (path turn)
  "Return the last text proposed for PATH in TURN, or nil.
Only the latest proposals since the mode was turned on are stored."
  (let ((start (/ (qwen-companion-turn-start turn) 1000.0))
        (end (if-let* ((end (qwen-companion-turn-end turn)))
                 (/ end 1000.0)
               (float-time))))
    (cl-loop for (proposed time . text) in qwen-companion-journal--proposals
             when (and (equal path proposed) (<= start time end))
             return text)))

(defun qwen-companion-journal--watch-for-proposals ()
  "Keep each turn up to date while there are proposals."
  (qwen-companion-journal-watch 'proposals (and (qwen-companion-proposals) t)))

(defun qwen-companion-journal--rival (proposal)
  "Return the name of another CLI that has changed the file of PROPOSAL, or nil.
Only a running turn counts."
  (let ((path (qwen-companion-proposal-path proposal)))
    (cl-loop for turn being the hash-values of qwen-companion-journal--turns
             when (and (null (qwen-companion-turn-end turn))
                       (qwen-companion-turn-cli turn)
                       (not (equal (qwen-companion-turn-cli turn)
                                   (qwen-companion-proposal-session proposal)))
                       (cl-find path (qwen-companion-turn-files turn)
                                :key #'qwen-companion-changed-file-path :test #'equal))
             return (qwen-companion-terminal-cli-name
                     (qwen-companion-turn-cli turn) (qwen-companion-turn-client turn)))))

;;; On and off

(defconst qwen-companion-journal--hooks
  '((after-save-hook . qwen-companion-journal--saved)
    (vc-checkin-hook . qwen-companion-journal-committed)
    (git-commit-post-finish-hook . qwen-companion-journal-committed)
    (qwen-companion-proposal-begun-functions . qwen-companion-journal--proposed)
    (qwen-companion-proposal-ended-functions . qwen-companion-journal--store-proposed)
    (qwen-companion-proposal-changed-hook . qwen-companion-journal--watch-for-proposals)
    (qwen-companion-proposal-rival-functions . qwen-companion-journal--rival)
    (qwen-companion-backend-connected-hook . qwen-companion-journal-resend)
    (qwen-companion-backend-disconnected-hook . qwen-companion-journal--process-gone))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defun qwen-companion-journal-enable ()
  "Begin to report each file that is saved."
  (qwen-companion-buffers-set-hooks qwen-companion-journal--hooks t))

(defun qwen-companion-journal-disable ()
  "Stop reporting, and forget each turn and all requests."
  (qwen-companion-buffers-set-hooks qwen-companion-journal--hooks nil)
  (setq qwen-companion-journal--watchers nil
        qwen-companion-journal--proposals nil
        qwen-companion-journal--arrived nil)
  (qwen-companion-journal--forget-turns))

(provide 'qwen-companion-journal)
;;; qwen-companion-journal.el ends here
